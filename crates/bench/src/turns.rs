//! The order of the targets in each round: balanced, so that what one target leaves behind is paid by each of the others.

/// The targets in their order in a round: a row of a Williams design (E. J. Williams, 1949). Over `targets` rounds, or
/// twice as many where their number is odd, each comes at each place and follows each other equally often.
#[must_use]
pub fn in_round(round: usize, targets: usize) -> Vec<usize> {
    // 0, 1, n - 1, 2, n - 2, ...: each distance between neighbours comes once.
    let from_both_ends = |place: usize| if place % 2 == 1 { place.div_ceil(2) } else { targets - place / 2 };
    let mut row: Vec<usize> = (0..targets).map(|place| (from_both_ends(place) + round) % targets).collect();
    if targets % 2 == 1 && (round / targets) % 2 == 1 {
        row.reverse();
    }
    row
}

/// `targets` in their order in a round.
pub fn of<T>(targets: &[T], round: usize) -> impl Iterator<Item = &T> {
    in_round(round, targets.len()).into_iter().map(|n| &targets[n])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_target_follows_each_other_equally_often_and_has_each_place() {
        for targets in 1..=13 {
            let rounds = if targets % 2 == 1 { 2 * targets } else { targets };
            let mut follows = vec![vec![0; targets]; targets];
            let mut places = vec![vec![0; targets]; targets];
            for round in 0..rounds {
                let row = in_round(round, targets);
                row.windows(2).for_each(|pair| follows[pair[0]][pair[1]] += 1);
                row.iter().enumerate().for_each(|(place, &target)| places[target][place] += 1);
            }
            let each = rounds / targets;
            for one in 0..targets {
                assert!(places[one].iter().all(|&times| times == each), "{targets} targets: {places:?}");
                let others = (0..targets).filter(|&other| other != one);
                assert!(
                    others.into_iter().all(|other| follows[one][other] == each),
                    "{targets}: {follows:?}"
                );
            }
        }
    }
}
