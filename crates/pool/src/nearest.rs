//! "Did you mean": the known word closest to a mistyped one.

/// Returns the candidate closest to `word`, if at most a third of its letters (at least one) are inserted, left out,
/// changed or swapped. Case does not count.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let tolerated = (word.chars().count() / 3).max(1);
    candidates
        .into_iter()
        .map(|candidate| (distance(word, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= tolerated && *distance < candidate.len())
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Number of edits between two words; a swap of neighbours counts as one (optimal string alignment).
fn distance(from: &str, to: &str) -> usize {
    let from: Vec<char> = from.chars().map(|c| c.to_ascii_lowercase()).collect();
    let to: Vec<char> = to.chars().map(|c| c.to_ascii_lowercase()).collect();
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=to.len()).collect();
    for i in 1..=from.len() {
        let mut row = vec![i];
        for j in 1..=to.len() {
            let changed = above[j - 1] + usize::from(from[i - 1] != to[j - 1]);
            let mut least = changed.min(above[j] + 1).min(row[j - 1] + 1);
            if 1 < i && 1 < j && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1] {
                least = least.min(before[j - 2] + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut above, row);
    }
    above[to.len()]
}

/// `; did you mean "nearest"?`, or nothing if no word is close enough.
pub fn suggestion<'a>(text: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(text, known).map(|near| format!("; did you mean \"{near}\"?")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_slips_are_recognised() {
        let known = ["mfs", "epmfs", "mspmfs", "create", "write-path"];
        assert_eq!(nearest("mfss", known), Some("mfs"));
        assert_eq!(nearest("EPMFS", known), Some("epmfs"));
        assert_eq!(nearest("craete", known), Some("create"));
        assert_eq!(nearest("writepath", known), Some("write-path"));
    }

    #[test]
    fn a_stranger_is_nobody() {
        assert_eq!(nearest("zzz", ["mfs", "ff"]), None);
        assert_eq!(nearest("x", ["a"]), None);
        assert_eq!(nearest("", ["a", "ab"]), None);
        assert_eq!(nearest("word", []), None);
    }

    #[test]
    fn a_swap_is_one_edit() {
        assert_eq!(distance("ab", "ba"), 1);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
    }
}
