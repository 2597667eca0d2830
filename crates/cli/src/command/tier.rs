//! `fsstack tier`: classes whose files go to another class when they are full.

use super::args::{Tier, TierAction};
use super::show::{self, Style};
use super::table::{Side, Table, size};
use super::{Failed, job, pool};
use fsstack_control::api::{TierList, TierRequest, TierStatus};
use std::fmt::Write as _;

/// Between two classes.
const ARROWS: [&str; 3] = ["->", "\u{2192}", ">"];

pub(crate) fn run(wish: &Tier, style: Style) -> Result<(), Failed> {
    let (word, request) = match &wish.action {
        TierAction::Status { pool } => (pool, TierRequest::Show),
        TierAction::Set {
            pool,
            fast,
            slow,
            start,
            stop,
            order,
            min_age,
            window,
            rate,
            make_way,
            dry_run,
            persist,
        } => {
            let mut tier = classes(fast, slow.as_deref())?;
            let words = [("start", Some(start)), ("stop", Some(stop)), ("order", Some(order))];
            let more = [("min-age", min_age.as_ref()), ("window", window.as_ref()), ("rate", rate.as_ref())];
            for (name, value) in words.into_iter().chain(more) {
                if let Some(value) = value {
                    let _ = write!(tier, ";{name}={value}");
                }
            }
            if *make_way {
                tier.push_str(";make-way");
            }
            if *dry_run {
                return job::plan_tier(&self::pool::find(pool)?.client(), tier, style);
            }
            (pool, TierRequest::Set { tier, persist: *persist })
        }
        TierAction::Remove { pool, fast, persist } => {
            let fast = ARROWS
                .iter()
                .find_map(|arrow| fast.split_once(arrow))
                .map_or(fast.as_str(), |(fast, _)| fast);
            (pool, TierRequest::Remove { fast: fast.to_owned(), persist: *persist })
        }
    };
    let tiers = pool::find(word)?.client().tiers(&request)?;
    show::answer(style, &tiers, human)
}

/// Both classes, as a tier has them.
fn classes(fast: &str, slow: Option<&str>) -> Result<String, Failed> {
    let is_both = ARROWS.iter().any(|arrow| fast.contains(arrow));
    let text = match slow {
        Some(slow) if !is_both => format!("{fast}>{slow}"),
        None if is_both => fast.to_owned(),
        _ => return Err(Failed::Usage("two classes: fsstack tier set POOL FAST SLOW".to_owned())),
    };
    match text.contains(';') {
        true => Err(Failed::Usage(format!(
            "{text}: no class has a `;`: write --start, --stop, --order, --min-age, --window and --rate"
        ))),
        false => Ok(text),
    }
}

fn human(answer: &TierList) -> String {
    let mut text = if answer.tiers.is_empty() {
        "no tier: no file moves by itself\n".to_owned()
    } else {
        use Side::{Left, Right};
        let mut table = Table::new(&[
            ("TIER", Left),
            ("USED", Right),
            ("SIZE", Right),
            ("START", Right),
            ("STOP", Right),
            ("ORDER", Left),
            ("WINDOW", Left),
            ("STATE", Left),
            ("WHY", Left),
        ]);
        for tier in &answer.tiers {
            table.row([
                format!("{}>{}", tier.fast, tier.slow),
                percent(tier),
                size(Some(tier.fast_total)),
                tier.start.clone(),
                tier.stop.clone(),
                tier.order.clone(),
                tier.window.clone().unwrap_or_else(|| "-".to_owned()),
                tier.state.clone(),
                tier.why.clone(),
            ]);
        }
        table.text()
    };
    if let Some(file) = &answer.persisted {
        let _ = writeln!(text, "written to {file}");
    }
    text
}

/// Used share of the faster class.
pub(super) fn percent(tier: &TierStatus) -> String {
    let share = (u128::from(tier.fast_used) * 100).checked_div(u128::from(tier.fast_total));
    share.map_or_else(|| "-".to_owned(), |share| format!("{share}%"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_classes_are_typed_in_any_way() {
        for (fast, slow) in
            [("fast", Some("slow")), ("fast>slow", None), ("fast->slow", None), ("fast\u{2192}slow", None)]
        {
            let text = classes(fast, slow).unwrap_or_default();
            let tier: fsstack_pool::Tier = text.parse().unwrap();
            assert_eq!((tier.fast.name(), tier.slow.name()), ("fast", "slow"));
        }
        for (fast, slow) in [("fast", None), ("fast>slow", Some("cold")), ("fast", Some("slow;start=1%"))] {
            assert!(classes(fast, slow).is_err());
        }
    }
}
