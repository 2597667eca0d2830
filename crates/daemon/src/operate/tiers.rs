//! Tiers, as the operator sets and sees them.

use super::Served;
use super::rules::check_target;
use crate::options;
use fsstack_control::Refusal;
use fsstack_control::api::{TierList, TierRequest, TierStatus};
use fsstack_engine::jobs::{TierState, TierView};
use fsstack_pool::{BadTier, Class, Target, Tier, Tiers};

impl Served {
    pub(super) fn obey_tier(&self, request: &TierRequest) -> Result<TierList, Refusal> {
        let usage = |error: &dyn std::fmt::Display| Refusal::usage(error.to_string());
        let persisted = match request {
            TierRequest::Show => None,
            TierRequest::Set { tier, persist } => {
                let tier = self.tier_of(tier)?;
                self.change_tiers(*persist, |tiers| tiers.with(tier.clone()).map_err(|error| usage(&error)))?
            }
            TierRequest::Remove { fast, persist } => {
                let class: Class =
                    fast.parse().map_err(|error| Refusal::usage(format!("`{fast}`: {error}")))?;
                self.change_tiers(*persist, |tiers| match tiers.of(&class) {
                    Some(_) => Ok(tiers.without(&class)),
                    None => Err(Refusal::missing(format!("{class}: no tier leads away from this class"))),
                })?
            }
        };
        Ok(TierList { tiers: self.tell_tiers(), persisted })
    }

    /// The tier as typed, between two classes that branches have.
    pub(super) fn tier_of(&self, typed: &str) -> Result<Tier, Refusal> {
        let tier: Tier = typed.parse().map_err(|error: BadTier| Refusal::usage(error.to_string()))?;
        for class in [&tier.fast, &tier.slow] {
            check_target(&self.union.pool(), &Target::Class(class.clone()))?;
        }
        Ok(tier)
    }

    fn change_tiers(
        &self,
        persist: bool,
        edit: impl FnOnce(&Tiers) -> Result<Tiers, Refusal>,
    ) -> Result<Option<String>, Refusal> {
        let _turn = self.changing.lock();
        let mut wanted = self.settings.lock().clone();
        let tiers = &mut wanted.options.engine.tiers;
        *tiers = edit(tiers)?;
        let row = options::find(options::TIERS);
        let persisted = if persist { self.persist(&wanted, row.as_slice(), false)? } else { None };
        self.put_in_force(&wanted)?;
        tracing::info!("tiers changed by the operator: {}", wanted.options.engine.tiers);
        self.replace_settings(wanted);
        Ok(persisted)
    }

    pub(super) fn tell_tiers(&self) -> Vec<TierStatus> {
        self.union.tiers().iter().map(tell_tier).collect()
    }
}

fn tell_tier(view: &TierView) -> TierStatus {
    let TierView { tier, fast, slow, state } = view;
    let (word, job, why) = tell_state(tier, state);
    TierStatus {
        fast: tier.fast.to_string(),
        slow: tier.slow.to_string(),
        tier: tier.to_string(),
        start: tier.start.to_string(),
        stop: tier.stop.to_string(),
        order: tier.order.to_string(),
        min_age_seconds: tier.min_age.as_secs(),
        window: tier.window.map(|window| window.to_string()),
        fast_used: fast.used,
        fast_total: fast.total,
        slow_used: slow.used,
        slow_total: slow.total,
        state: word.to_owned(),
        job,
        why,
    }
}

/// A state in a word, its job, and the state in a sentence.
fn tell_state(tier: &Tier, state: &TierState) -> (&'static str, Option<u64>, String) {
    match state {
        TierState::BelowStart => {
            ("below-start", None, format!("{} is not fuller than {}", tier.fast, tier.start))
        }
        TierState::AtWork(job) => ("moving", Some(*job), format!("job {job} moves files to {}", tier.slow)),
        TierState::Due => ("due", None, "files move in a moment".to_owned()),
        TierState::OutOfWindow => {
            let window = tier.window.map(|window| window.to_string()).unwrap_or_default();
            ("out-of-window", None, format!("outside of the window {window}"))
        }
        TierState::Waits(job) => ("waiting", Some(*job), format!("job {job} is at work")),
        TierState::NoBranch(class) => ("no-branch", None, format!("no branch has the class {class}")),
        TierState::NoRoom => (
            "no-room",
            None,
            format!("no branch of {} has room above its floor, or takes anything", tier.slow),
        ),
        TierState::Rests { job, cancelled, left } => {
            let did = if *cancelled { "was cancelled" } else { "has moved what it could" };
            let minutes = left.as_secs().div_ceil(60);
            ("resting", Some(*job), format!("job {job} {did}: looks again in {minutes} min"))
        }
    }
}
