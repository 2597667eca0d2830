//! Reads test counts from the output of nextest and libtest.

/// How many tests ran, by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TestCounts {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
}

/// Sums all summary lines in `output`.
pub(crate) fn read(output: &str) -> TestCounts {
    let lines = || output.lines().map(str::trim);
    let nextest: Vec<&str> = lines()
        .filter_map(|line| line.strip_prefix("Summary [")?.split_once(" run: "))
        .map(|(_, counts)| counts)
        .collect();
    if !nextest.is_empty() {
        // nextest quotes the output of failed tests, including libtest's summary.
        return sum(nextest.into_iter());
    }
    sum(lines().filter_map(|line| Some(line.strip_prefix("test result: ")?.split_once(". ")?.1)))
}

fn sum<'t>(summaries: impl Iterator<Item = &'t str>) -> TestCounts {
    summaries.flat_map(|counts| counts.split([',', ';'])).fold(TestCounts::default(), |counted, part| {
        let mut words = part.split_whitespace();
        let count = words.next().and_then(|n| n.parse().ok()).unwrap_or(0);
        match words.next() {
            Some("passed") => TestCounts { passed: counted.passed + count, ..counted },
            // "3 timed out", "1 exec failed"
            Some("failed" | "timed" | "exec") => TestCounts { failed: counted.failed + count, ..counted },
            _ => counted,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nextest() {
        let line = "     Summary [   0.5s] 13/15 tests run: 10 passed (1 slow), 2 failed, 1 timed out, 4 skipped\n\
                    test result: FAILED. 0 passed; 1 failed; 0 ignored\n";
        assert_eq!(read(line), TestCounts { passed: 10, failed: 3 });
    }

    #[test]
    fn libtest() {
        let lines = "test result: ok. 11 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out\n\
                     test result: FAILED. 3 passed; 1 failed; 0 ignored; 0 measured\n";
        assert_eq!(read(lines), TestCounts { passed: 14, failed: 1 });
    }

    #[test]
    fn neither() {
        assert_eq!(read("error: could not compile\n"), TestCounts::default());
    }
}
