//! Known failures with their reasons: `expected.txt`.

use std::collections::BTreeMap;

const LIST: &str = include_str!("expected.txt");

/// Cases known to fail on one test bed, each with its reason.
pub(crate) fn failures(place: &str) -> BTreeMap<&'static str, &'static str> {
    parse(LIST)
        .unwrap()
        .into_iter()
        .filter(|known| known.place == place)
        .map(|known| (known.case, known.reason))
        .collect()
}

#[derive(Debug, PartialEq, Eq)]
struct Known<'l> {
    place: &'l str,
    case: &'l str,
    reason: &'l str,
}

fn parse(list: &str) -> Result<Vec<Known<'_>>, String> {
    let lines = list.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| known(line).ok_or_else(|| format!("not `PLACE CASE = REASON`: {line}"))).collect()
}

fn known(line: &str) -> Option<Known<'_>> {
    let (head, reason) = line.split_once(" = ")?;
    let (place, case) = head.trim().split_once(' ')?;
    let whole = !reason.trim().is_empty() && !case.trim().contains(' ');
    whole.then_some(Known { place, case: case.trim(), reason: reason.trim() })
}

#[test]
fn a_known_failure_has_a_reason() {
    let good = "# why\nspread a::b::c = it is so = it is\n";
    let expected = Known { place: "spread", case: "a::b::c", reason: "it is so = it is" };
    assert_eq!(parse(good).unwrap(), [expected]);
    for bad in ["spread a::b", "spread a::b = ", "a::b = why", "spread a b = why"] {
        assert!(parse(bad).is_err(), "{bad}");
    }
}

#[test]
fn every_known_failure_can_be_read() {
    assert!(parse(LIST).is_ok_and(|known| known.iter().all(|k| ["one-branch", "spread"].contains(&k.place))));
}
