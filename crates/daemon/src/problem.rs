//! Reasons for refusing a mount: all found ones are kept, one line each, and their kinds decide the exit code.

use std::fmt;

/// Kinds of failure in mount(8)'s exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Failure {
    /// A valid mount failed (32).
    Mount,
    /// A basic system call failed, such as starting a process (2).
    System,
    /// Usage error (1).
    Usage,
}

impl Failure {
    /// mount(8)'s exit code for it.
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Usage => 1,
            Self::System => 2,
            Self::Mount => 32,
        }
    }
}

/// A reason for refusing the mount: subject, reason and remedy on one line.
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

/// Problems found so far.
#[derive(Debug, Default)]
pub struct Problems(Vec<Problem>);

impl Problems {
    /// Adds a usage error.
    pub fn usage(&mut self, text: impl Into<String>) {
        self.add(Failure::Usage, text.into());
    }

    /// Adds a reason why the mount fails in the current state.
    pub fn mount(&mut self, text: impl Into<String>) {
        self.add(Failure::Mount, text.into());
    }

    fn add(&mut self, failure: Failure, text: String) {
        let problem = Problem { failure, text };
        if !self.0.contains(&problem) {
            self.0.push(problem);
        }
    }

    /// True if there is no problem.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The kind that decides the exit code: usage errors first.
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
