//! Command line grammar: mount(8)'s `SOURCE TARGET [-sfnv] [-o OPTIONS]`, in any order.

use crate::print::Page;
use crate::problem::Problems;
use fsstack_pool::Printable;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// Task of the program.
#[derive(Debug)]
pub enum Request {
    /// Mount a pool.
    Mount(Invocation),
    /// Print a page generated from the option table.
    Print(Page),
    /// Print the version.
    Version,
}

/// A mount as typed, before its options are parsed.
#[derive(Debug, Default)]
pub struct Invocation {
    /// The branches, without any `fsstack#` prefix.
    pub source: OsString,
    /// The mount point.
    pub target: OsString,
    /// Every `-o` list, in order.
    pub lists: Vec<OsString>,
    /// `-s`: unknown options are reported and ignored.
    pub sloppy: bool,
    /// `-f`: check everything, mount nothing.
    pub fake: bool,
    /// `-v`: print each step.
    pub verbose: bool,
}

/// Parses the arguments after the program's name.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Request, Problems> {
    let mut arguments = arguments.into_iter();
    let mut typed = TypedWords::default();
    let mut only_names = false;
    while let Some(argument) = arguments.next() {
        match argument.as_bytes() {
            b"--" if !only_names => only_names = true,
            [b'-', b'-', long @ ..] if !only_names => typed.long(OsStr::from_bytes(long), &mut arguments),
            [b'-', short @ ..] if !only_names && !short.is_empty() => typed.short(short, &mut arguments),
            _ => typed.names.push(argument),
        }
    }
    typed.finish()
}

#[derive(Default)]
struct TypedWords {
    names: Vec<OsString>,
    mount: Invocation,
    instead: Option<Request>,
    problems: Problems,
}

impl TypedWords {
    fn long(&mut self, option: &OsStr, rest: &mut impl Iterator<Item = OsString>) {
        let (name, joined) = match option.as_bytes().iter().position(|byte| *byte == b'=') {
            Some(at) => {
                (&option.as_bytes()[..at], Some(OsStr::from_bytes(&option.as_bytes()[at + 1..]).to_owned()))
            }
            None => (option.as_bytes(), None),
        };
        match name {
            b"help" => self.instead = Some(Request::Print(Page::Help)),
            b"version" => self.instead = Some(Request::Version),
            b"verbose" => self.mount.verbose = true,
            b"fake" => self.mount.fake = true,
            b"options" => self.list(joined.or_else(|| rest.next())),
            b"print" => self.page(joined.or_else(|| rest.next())),
            _ => self.unknown("--", option),
        }
    }

    /// Parses a cluster of one-letter options. One with a value takes the rest of the cluster, or the next argument.
    fn short(&mut self, cluster: &[u8], rest: &mut impl Iterator<Item = OsString>) {
        for (at, letter) in cluster.iter().enumerate() {
            let mut value = || match &cluster[at + 1..] {
                [] => rest.next(),
                joined => Some(OsStr::from_bytes(joined).to_owned()),
            };
            match letter {
                b's' => self.mount.sloppy = true,
                b'f' => self.mount.fake = true,
                b'v' => self.mount.verbose = true,
                b'n' => {} // there is no mtab to write
                b'h' => self.instead = Some(Request::Print(Page::Help)),
                b'V' => self.instead = Some(Request::Version),
                b'o' => return self.list(value()),
                b't' => return drop(value()), // mount(8) has chosen the helper by it
                b'N' => {
                    let space = value().unwrap_or_default();
                    self.problems.usage(format!(
                        "-N {}: mounting into another namespace is not supported; run it there with nsenter(1)",
                        Printable::os(&space)
                    ));
                    return;
                }
                _ => return self.unknown("-", OsStr::from_bytes(&[*letter])),
            }
        }
    }

    fn list(&mut self, list: Option<OsString>) {
        match list {
            Some(list) => self.mount.lists.push(list),
            None => self.problems.usage("-o: a list of options is missing behind it"),
        }
    }

    fn page(&mut self, name: Option<OsString>) {
        match name.as_deref().and_then(OsStr::to_str).and_then(Page::by_name) {
            Some(page) => self.instead = Some(Request::Print(page)),
            None => self.problems.usage(format!(
                "--print {}: no such page; there are {}",
                Printable::os(&name.unwrap_or_default()),
                Page::NAMES.map(|(name, _)| name).join(", ")
            )),
        }
    }

    fn unknown(&mut self, dashes: &str, option: &OsStr) {
        self.problems.usage(format!(
            "{dashes}{}: unknown; the options of a mount stand behind -o (see --help)",
            Printable::os(option)
        ));
    }

    fn finish(mut self) -> Result<Request, Problems> {
        if let (Some(instead), true) = (self.instead, self.problems.is_empty()) {
            return Ok(instead);
        }
        match <[OsString; 2]>::try_from(self.names) {
            Ok([source, target]) => {
                self.mount.source = without_type(&source).to_owned();
                self.mount.target = target;
            }
            Err(names) => self.problems.usage(match names.as_slice() {
                [] => {
                    "SOURCE and TARGET are missing: mount.fsstack /branch1:/branch2 /mount/point [-o OPTIONS]"
                        .to_owned()
                }
                [source] => format!("TARGET is missing behind SOURCE \"{}\"", Printable::os(source)),
                [_, _, more, ..] => {
                    format!(
                        "\"{}\": one SOURCE and one TARGET are enough; join branches with \":\"",
                        Printable::os(more)
                    )
                }
                _ => "SOURCE and TARGET are needed".to_owned(),
            }),
        }
        if self.problems.is_empty() { Ok(Request::Mount(self.mount)) } else { Err(self.problems) }
    }
}

/// An fstab line for mount.fuse names the type before the source: `fsstack#/a,/b`.
fn without_type(source: &OsStr) -> &OsStr {
    OsStr::from_bytes(source.as_bytes().strip_prefix(b"fsstack#").unwrap_or(source.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};

    fn check(line: &str, expected: Expect) {
        let told = match parse(line.split_whitespace().map(OsString::from)) {
            Ok(Request::Mount(typed)) => {
                let flags = [(typed.sloppy, "sloppy"), (typed.fake, "fake"), (typed.verbose, "verbose")];
                let flags: Vec<_> = flags.iter().filter(|(set, _)| *set).map(|(_, name)| *name).collect();
                format!("{:?} on {:?} with {:?} {}", typed.source, typed.target, typed.lists, flags.join(" "))
            }
            Ok(other) => format!("{other:?}"),
            Err(problems) => problems.into_iter().map(|p| p.text.as_str()).collect::<Vec<_>>().join("\n"),
        };
        expected.assert_eq(&told);
    }

    #[test]
    fn as_mount_calls_it() {
        check("/a:/b /mnt -o rw,nofail", expect![[r#""/a:/b" on "/mnt" with ["rw,nofail"] "#]]);
        check(
            "/a /mnt -sfnv -t fsstack -o rw",
            expect![[r#""/a" on "/mnt" with ["rw"] sloppy fake verbose"#]],
        );
    }

    #[test]
    fn options_stand_anywhere_and_repeat() {
        check(
            "-oro -v /a --options=create=mfs /mnt",
            expect![[r#""/a" on "/mnt" with ["ro", "create=mfs"] verbose"#]],
        );
    }

    #[test]
    fn the_type_before_a_source_is_dropped() {
        check("fsstack#/a,/b /mnt", expect![[r#""/a,/b" on "/mnt" with [] "#]]);
    }

    #[test]
    fn names_behind_two_dashes_may_look_like_options() {
        check("-- -a -b", expect![[r#""-a" on "-b" with [] "#]]);
    }

    #[test]
    fn all_defects_are_reported_at_once() {
        check(
            "/a -q --frob -o",
            expect![[r#"
                -q: unknown; the options of a mount stand behind -o (see --help)
                --frob: unknown; the options of a mount stand behind -o (see --help)
                -o: a list of options is missing behind it
                TARGET is missing behind SOURCE "/a""#]],
        );
        check(
            "/a /b /mnt",
            expect![[r#""/mnt": one SOURCE and one TARGET are enough; join branches with ":""#]],
        );
        check(
            "",
            expect![
                "SOURCE and TARGET are missing: mount.fsstack /branch1:/branch2 /mount/point [-o OPTIONS]"
            ],
        );
    }

    #[test]
    fn pages_and_version() {
        check("--help", expect!["Print(Help)"]);
        check("--print man", expect!["Print(Man)"]);
        check("-V", expect!["Version"]);
        check("--print x", expect!["--print x: no such page; there are help, options-md, readme-options, man, completions-bash, completions-zsh, completions-fish
SOURCE and TARGET are missing: mount.fsstack /branch1:/branch2 /mount/point [-o OPTIONS]"]);
    }
}
