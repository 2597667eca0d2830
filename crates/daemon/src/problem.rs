//! Why a mount is refused: every reason found is kept, each one line, and the exit code follows from their kinds.

use std::fmt;

/// Kinds of failure that mount(8) reports to its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Failure {
    /// The mount was asked for rightly and could not be made (32).
    Mount,
    /// The system could not do what any program may ask of it, such as a new process (2).
    System,
    /// It was asked for wrongly (1).
    Usage,
}

impl Failure {
    /// The exit code of mount(8) for it.
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Usage => 1,
            Self::System => 2,
            Self::Mount => 32,
        }
    }
}

/// One reason not to mount: what, why and the way out, on one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Kind of failure, for the exit code.
    pub failure: Failure,
    /// The line shown, without the program's name.
    pub text: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text)
    }
}

/// All that was found wrong so far.
#[derive(Debug, Default)]
pub struct Problems(Vec<Problem>);

impl Problems {
    /// It was asked for wrongly.
    pub fn usage(&mut self, text: impl Into<String>) {
        self.add(Failure::Usage, text.into());
    }

    /// It cannot be mounted as things stand.
    pub fn mount(&mut self, text: impl Into<String>) {
        self.add(Failure::Mount, text.into());
    }

    fn add(&mut self, failure: Failure, text: String) {
        let problem = Problem { failure, text };
        if !self.0.contains(&problem) {
            self.0.push(problem);
        }
    }

    /// Whether nothing was found wrong.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The failure that the exit code tells: wrong usage before all else.
    pub fn failure(&self) -> Failure {
        self.0.iter().map(|problem| problem.failure).max().unwrap_or(Failure::Mount)
    }
}

impl<'a> IntoIterator for &'a Problems {
    type Item = &'a Problem;
    type IntoIter = std::slice::Iter<'a, Problem>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}
