//! The grammar of a pool's source: `/a=RW,50G:/b=NC:/c*`.
//!
//! Branches are separated by `:` or `,`. After `=` come a branch's attributes, separated by `,`: a mode, a floor,
//! `min-inodes=N`, `cross-mounts`, `class=NAME`, in any order. So `,` has two meanings: the text after one that follows an attribute
//! is another attribute if it parses as one, else the next branch. A path that looks like an attribute is written
//! `./RO`, or with an escape in it.
//!
//! A backslash makes the following punctuation literal; `\054` is the literal byte with that octal number. `*`, `?` and
//! `[` make a path a pattern.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use crate::branch::{BranchMode, BranchSpec};
use crate::class::{BadClass, Class};
use crate::escape::{self, BadEscape, Symbol, bytes_of, cut};
use crate::printable::Printable;
use crate::size::{Floor, SizeError};

/// Prefix of the branches in an fstab line for FUSE file systems.
const FUSE_PREFIX: &[u8] = b"fsstack#";
/// Prefixes of other union file systems, in lines that users copy.
const OTHERS_PREFIXES: [&[u8]; 2] = [b"mhddfs#", b"mergerfs#"];

/// A part of a source that cannot be parsed, and the fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("branches: `{piece}`: {fault}")]
pub struct SpecError {
    /// The faulty part of the source, printable.
    pub piece: String,
    /// The fault.
    pub fault: SpecFault,
}

/// Faults in a piece of a source, each with the right form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecFault {
    /// A missing path.
    #[error("a branch's path is missing: write branches as /a:/b, with one `:` or `,` between two")]
    NoPath,
    /// Not an attribute, directly after `=`.
    #[error(
        "not a branch attribute: after `=` write RW, NC or RO, a floor as 50G or 5%, min-inodes=N, \
         cross-mounts or class=NAME (a `=` in a path is written `\\=`)"
    )]
    NotAnAttribute,
    /// An attribute that the branch already has.
    #[error("a branch has one {0}: leave one out")]
    Twice(&'static str),
    /// A floor out of range.
    #[error("out of range: a floor is at most 16383P, or 100%")]
    FloorRange,
    /// `min-inodes` without a number.
    #[error("not a number of inodes: write min-inodes=1000")]
    Inodes,
    /// `class` with a word that is none.
    #[error(transparent)]
    Class(#[from] BadClass),
    /// A backslash before neither punctuation nor three octal digits.
    #[error(
        "not an escape: write `\\\\` for a backslash, `\\:` `\\,` `\\=` for separators, `\\040` for a byte"
    )]
    Escape,
    /// Prefix of the branches in the fstab lines of another program.
    #[error("the prefix of another program: write fsstack# in its place, or leave it out")]
    OthersPrefix,
    /// A NUL byte.
    #[error("a path cannot contain a NUL byte")]
    Nul,
    /// A pattern with bytes that are not UTF-8.
    #[error("a pattern must be UTF-8: write the directories one by one")]
    PatternNotUtf8,
    /// An escape between brackets, where patterns allow none.
    #[error("nothing can be escaped between [ and ]: a `]` goes first, as []abc]")]
    EscapeInBrackets,
}

enum Attribute {
    Mode(BranchMode),
    Floor(Floor),
    MinInodes(u64),
    CrossMounts,
    Class(Class),
}

/// Parses the branches of a pool, in order; at least one.
pub fn parse_source(source: &OsStr) -> Result<Vec<BranchSpec>, SpecError> {
    let bytes = source.as_bytes();
    if let Some(prefix) = OTHERS_PREFIXES.into_iter().find(|prefix| bytes.starts_with(prefix)) {
        return Err(fault_in(prefix, SpecFault::OthersPrefix));
    }
    let symbols = unescape(bytes.strip_prefix(FUSE_PREFIX).unwrap_or(bytes))?;
    let mut branches = Vec::new();
    let mut rest = Some(symbols.as_slice());
    while let Some(here) = rest {
        let (branch, after) = parse_branch(here).map_err(|error| match error.fault {
            // An empty piece says nothing, so the text around it is shown.
            SpecFault::NoPath => SpecError { piece: Printable(bytes).to_string(), ..error },
            _ => error,
        })?;
        branches.push(branch);
        rest = after;
    }
    Ok(branches)
}

fn unescape(bytes: &[u8]) -> Result<Vec<Symbol>, SpecError> {
    escape::unescape(bytes).map_err(|error| match error {
        BadEscape::Unknown(piece) => SpecError { piece, fault: SpecFault::Escape },
        BadEscape::Nul => fault_in(bytes, SpecFault::Nul),
    })
}

/// Parses one branch from the start of `symbols`. Returns it and the rest after its separator, if any.
fn parse_branch(symbols: &[Symbol]) -> Result<(BranchSpec, Option<&[Symbol]>), SpecError> {
    let (path, after) = cut(symbols, b":,=");
    let mut branch = parse_path(path)?;
    let Some((separator, mut rest)) = after else { return Ok((branch, None)) };
    if separator != b'=' {
        return Ok((branch, Some(rest)));
    }
    let mut seen = Vec::new();
    loop {
        let (token, after) = cut(rest, b":,");
        match parse_attribute(token)? {
            Some(attribute) => {
                set(&mut branch, attribute, &mut seen).map_err(|fault| fault_at(token, fault))?
            }
            None if seen.is_empty() => return Err(fault_at(token, SpecFault::NotAnAttribute)),
            None => return Ok((branch, Some(rest))),
        }
        match after {
            None => return Ok((branch, None)),
            Some((b':', after)) => return Ok((branch, Some(after))),
            Some((_, after)) => rest = after,
        }
    }
}

fn parse_path(symbols: &[Symbol]) -> Result<BranchSpec, SpecError> {
    if symbols.is_empty() {
        return Err(fault_at(symbols, SpecFault::NoPath));
    }
    let has_glob = symbols.iter().any(|symbol| symbol.means(b"*?["));
    let path = if has_glob { pattern(symbols)?.into() } else { OsString::from_vec(bytes_of(symbols)) };
    Ok(BranchSpec { has_glob, ..BranchSpec::new(path.into()) })
}

/// Converts to the notation of the `glob` crate, which has no backslash: literal characters are put in brackets.
fn pattern(symbols: &[Symbol]) -> Result<String, SpecError> {
    let mut bytes = Vec::with_capacity(symbols.len());
    let mut in_brackets = false;
    for symbol in symbols {
        match symbol {
            Symbol { byte: b'*' | b'?' | b'[' | b']', escaped: true } if in_brackets => {
                return Err(fault_at(symbols, SpecFault::EscapeInBrackets));
            }
            Symbol { byte: byte @ (b'*' | b'?' | b'['), escaped: true } => bytes.extend([b'[', *byte, b']']),
            Symbol { byte, escaped } => {
                bytes.push(*byte);
                in_brackets = match byte {
                    b'[' if !escaped => true,
                    b']' => false,
                    _ => in_brackets,
                };
            }
        }
    }
    String::from_utf8(bytes).map_err(|_| fault_at(symbols, SpecFault::PatternNotUtf8))
}

/// Parses `token` as an attribute; `None` if it is none.
fn parse_attribute(token: &[Symbol]) -> Result<Option<Attribute>, SpecError> {
    if token.first().is_some_and(|first| b"/.~".contains(&first.byte)) || token.iter().any(|s| s.escaped) {
        return Ok(None);
    }
    let Ok(text) = String::from_utf8(bytes_of(token)) else { return Ok(None) };
    if let Ok(mode) = text.parse() {
        return Ok(Some(Attribute::Mode(mode)));
    }
    if text == "cross-mounts" {
        return Ok(Some(Attribute::CrossMounts));
    }
    if let Some(number) = text.strip_prefix("min-inodes=") {
        let least = number.parse().map_err(|_| fault_at(token, SpecFault::Inodes))?;
        return Ok(Some(Attribute::MinInodes(least)));
    }
    if let Some(name) = text.strip_prefix("class=") {
        let class = name.parse().map_err(|error: BadClass| fault_at(token, error.into()))?;
        return Ok(Some(Attribute::Class(class)));
    }
    match text.parse::<Floor>() {
        Ok(floor) => Ok(Some(Attribute::Floor(floor))),
        Err(SizeError::NotAFloor(_) | SizeError::NotASize(_)) => Ok(None),
        Err(SizeError::TooLarge(_) | SizeError::PastWhole(_)) => Err(fault_at(token, SpecFault::FloorRange)),
    }
}

fn set(branch: &mut BranchSpec, attribute: Attribute, seen: &mut Vec<&'static str>) -> Result<(), SpecFault> {
    let kind = match attribute {
        Attribute::Mode(_) => "mode",
        Attribute::Floor(_) => "floor",
        Attribute::MinInodes(_) => "min-inodes",
        Attribute::CrossMounts => "cross-mounts",
        Attribute::Class(_) => "class",
    };
    if seen.contains(&kind) {
        return Err(SpecFault::Twice(kind));
    }
    seen.push(kind);
    match attribute {
        Attribute::Mode(mode) => branch.mode = mode,
        Attribute::Floor(floor) => branch.floor = Some(floor),
        Attribute::MinInodes(least) => branch.min_inodes = Some(least),
        Attribute::CrossMounts => branch.cross_mounts = true,
        Attribute::Class(class) => branch.class = Some(class),
    }
    Ok(())
}

fn fault_at(symbols: &[Symbol], fault: SpecFault) -> SpecError {
    fault_in(&bytes_of(symbols), fault)
}

fn fault_in(bytes: &[u8], fault: SpecFault) -> SpecError {
    SpecError { piece: Printable(bytes).to_string(), fault }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use proptest::prelude::*;

    use super::*;

    fn check(source: &str, expected: Expect) {
        check_bytes(source.as_bytes(), expected);
    }

    fn check_bytes(source: &[u8], expected: Expect) {
        let shown = match parse_source(OsStr::from_bytes(source)) {
            Ok(branches) => branches.iter().map(shown).collect::<Vec<_>>().join(" | "),
            Err(error) => error.to_string(),
        };
        expected.assert_eq(&shown);
    }

    fn shown(branch: &BranchSpec) -> String {
        let mut text = format!("{} {}", Printable::path(&branch.path), branch.mode);
        text += if branch.has_glob { " glob" } else { "" };
        text += &branch.floor.map_or(String::new(), |floor| format!(" floor={floor}"));
        text += &branch.min_inodes.map_or(String::new(), |least| format!(" inodes={least}"));
        text += &branch.class.as_ref().map_or(String::new(), |class| format!(" class={class}"));
        text + if branch.cross_mounts { " cross-mounts" } else { "" }
    }

    #[test]
    fn lists() {
        check("/a", expect!["/a RW"]);
        check("/a:/b", expect!["/a RW | /b RW"]);
        check("/a,/b:c", expect!["/a RW | /b RW | c RW"]);
        check("fsstack#/a,/b", expect!["/a RW | /b RW"]);
        check("/my disk:/b", expect!["/my disk RW | /b RW"]);
        check("/a/:~/b", expect!["/a/ RW | ~/b RW"]);
    }

    #[test]
    fn attributes() {
        check("a=RW,50G:b=RO", expect!["a RW floor=50G | b RO"]);
        check("/a=RW,/b=NC,/c=RO", expect!["/a RW | /b NC | /c RO"]);
        check("/a=ro,/b=nc", expect!["/a RO | /b NC"]);
        check("/a=50G,RW,/b", expect!["/a RW floor=50G | /b RW"]);
        check(
            "/a=5%,min-inodes=1000,cross-mounts,NC:/b",
            expect!["/a NC floor=5% inodes=1000 cross-mounts | /b RW"],
        );
        check(
            "/n*=RW,class=fast:/h=class=slow,1G",
            expect!["/n* RW glob class=fast | /h RW floor=1G class=slow"],
        );
        check("/a=RW,b=RO", expect!["/a RW | b RO"]);
        check("/a=RW,b", expect!["/a RW | b RW"]);
        check("/a=RW,./50G", expect!["/a RW | ./50G RW"]);
        check(r"/a=RW,5\0600G", expect!["/a RW | 500G RW"]);
        check(
            r"/a=RW,\RO",
            expect![[
                r#"branches: `\RO`: not an escape: write `\\` for a backslash, `\:` `\,` `\=` for separators, `\040` for a byte"#
            ]],
        );
        check("/a,50G", expect!["/a RW | 50G RW"]);
        check("/a=0", expect!["/a RW floor=0"]);
    }

    #[test]
    fn escapes() {
        check(r"/a\:b:/c\,d:/e\=f:/g\\h", expect![[r#"/a:b RW | /c,d RW | /e=f RW | /g\h RW"#]]);
        check(r"/a\040b\054c\072d", expect!["/a b,c:d RW"]);
        check_bytes(b"/caf\xe9:/b", expect![[r#"/caf\351 RW | /b RW"#]]);
        check(r"/caf\351", expect![[r#"/caf\351 RW"#]]);
        check(r"fsstack\#x", expect!["fsstack#x RW"]);
        check("fsstack#fsstack#x", expect!["fsstack#x RW"]);
    }

    #[test]
    fn patterns() {
        check("/srv/pair0*", expect!["/srv/pair0* RW glob"]);
        check("/srv/pair[0-3]=NC,10G:/x", expect!["/srv/pair[0-3] NC glob floor=10G | /x RW"]);
        check(r"/a\*b", expect!["/a*b RW"]);
        check(r"/a\*b*\?\[\]", expect!["/a[*]b*[?][[]] RW glob"]);
        check(
            r"/a[x\]]",
            expect![
                "branches: `/a[x]]`: nothing can be escaped between [ and ]: a `]` goes first, as []abc]"
            ],
        );
        check_bytes(
            b"/\xff*",
            expect![[r#"branches: `/\377*`: a pattern must be UTF-8: write the directories one by one"#]],
        );
    }

    #[test]
    fn missing_pieces() {
        check(
            "",
            expect![
                "branches: ``: a branch's path is missing: write branches as /a:/b, with one `:` or `,` between two"
            ],
        );
        check(
            "fsstack#",
            expect![
                "branches: `fsstack#`: a branch's path is missing: write branches as /a:/b, with one `:` or `,` between two"
            ],
        );
        check(
            "/a::/b",
            expect![
                "branches: `/a::/b`: a branch's path is missing: write branches as /a:/b, with one `:` or `,` between two"
            ],
        );
        check(
            "/a:",
            expect![
                "branches: `/a:`: a branch's path is missing: write branches as /a:/b, with one `:` or `,` between two"
            ],
        );
        check(
            "/a=RW,",
            expect![
                "branches: `/a=RW,`: a branch's path is missing: write branches as /a:/b, with one `:` or `,` between two"
            ],
        );
        check(
            "=RW",
            expect![
                "branches: `=RW`: a branch's path is missing: write branches as /a:/b, with one `:` or `,` between two"
            ],
        );
    }

    #[test]
    fn the_prefixes_of_others_are_refused_by_name() {
        let fault = |source: &str| parse_source(OsStr::new(source)).unwrap_err().fault;
        assert_eq!(fault("mergerfs#/a:/b"), SpecFault::OthersPrefix);
        assert_eq!(fault("mhddfs#/a,/b"), SpecFault::OthersPrefix);
    }

    #[test]
    fn bad_attributes() {
        check(
            "/a=",
            expect![[
                r#"branches: ``: not a branch attribute: after `=` write RW, NC or RO, a floor as 50G or 5%, min-inodes=N, cross-mounts or class=NAME (a `=` in a path is written `\=`)"#
            ]],
        );
        check(
            "/a=/b",
            expect![[
                r#"branches: `/b`: not a branch attribute: after `=` write RW, NC or RO, a floor as 50G or 5%, min-inodes=N, cross-mounts or class=NAME (a `=` in a path is written `\=`)"#
            ]],
        );
        check(
            "/a=WR",
            expect![[
                r#"branches: `WR`: not a branch attribute: after `=` write RW, NC or RO, a floor as 50G or 5%, min-inodes=N, cross-mounts or class=NAME (a `=` in a path is written `\=`)"#
            ]],
        );
        check(
            "/a=50X",
            expect![[
                r#"branches: `50X`: not a branch attribute: after `=` write RW, NC or RO, a floor as 50G or 5%, min-inodes=N, cross-mounts or class=NAME (a `=` in a path is written `\=`)"#
            ]],
        );
        check("/a=150%", expect!["branches: `150%`: out of range: a floor is at most 16383P, or 100%"]);
        check(
            "/a=RW,99999P",
            expect!["branches: `99999P`: out of range: a floor is at most 16383P, or 100%"],
        );
        check("/a=RW,RO", expect!["branches: `RO`: a branch has one mode: leave one out"]);
        check("/a=class=a,class=b", expect!["branches: `class=b`: a branch has one class: leave one out"]);
        check(
            "/a=class=",
            expect![
                "branches: `class=`: not a class: write 1 to 32 letters, digits, `.`, `_` or `-`, as class=fast"
            ],
        );
        check("/a=1G,2G", expect!["branches: `2G`: a branch has one floor: leave one out"]);
        check(
            "/a=min-inodes=many",
            expect!["branches: `min-inodes=many`: not a number of inodes: write min-inodes=1000"],
        );
    }

    #[test]
    fn bad_escapes() {
        check(
            r"/a\b",
            expect![[
                r#"branches: `\b`: not an escape: write `\\` for a backslash, `\:` `\,` `\=` for separators, `\040` for a byte"#
            ]],
        );
        check(
            r"/a\",
            expect![[
                r#"branches: `\`: not an escape: write `\\` for a backslash, `\:` `\,` `\=` for separators, `\040` for a byte"#
            ]],
        );
        check(
            r"/a\400",
            expect![[
                r#"branches: `\400`: not an escape: write `\\` for a backslash, `\:` `\,` `\=` for separators, `\040` for a byte"#
            ]],
        );
        check(r"/a\000", expect![[r#"branches: `/a\000`: a path cannot contain a NUL byte"#]]);
    }

    fn any_branch() -> impl Strategy<Value = BranchSpec> {
        let mode =
            prop_oneof![Just(BranchMode::ReadWrite), Just(BranchMode::NoCreate), Just(BranchMode::ReadOnly)];
        let floor =
            prop_oneof![any::<u64>().prop_map(Floor::Bytes), (0_u16..=1000).prop_map(Floor::PerMille)];
        let path = prop_oneof![
            prop::collection::vec(1_u8..=255, 1..20),
            prop::collection::vec(prop::sample::select(br"/a:,=\*?[]#0RO".to_vec()), 1..12),
        ];
        (
            path,
            mode,
            prop::option::of(floor),
            any::<Option<u64>>(),
            any::<bool>(),
            prop::option::of("[a-z0-9._-]{1,9}"),
        )
            .prop_map(|(path, mode, floor, min_inodes, cross_mounts, class)| BranchSpec {
                mode,
                floor,
                min_inodes,
                cross_mounts,
                class: class.map(|name| name.parse().unwrap()),
                ..BranchSpec::new(OsString::from_vec(path).into())
            })
    }

    proptest! {
        #[test]
        fn printed_values_are_read_back(branches in prop::collection::vec(any_branch(), 1..5), comma: bool) {
            let texts: Vec<String> = branches.iter().map(ToString::to_string).collect();
            prop_assert_eq!(parse_source(OsStr::new(&texts.join(":"))), Ok(branches.clone()));
            if comma && branches.iter().all(|b| b.path.has_root()) {
                prop_assert_eq!(parse_source(OsStr::new(&texts.join(","))), Ok(branches));
            }
        }

        #[test]
        fn no_bytes_panic_and_what_is_read_prints_the_same(
            source in prop_oneof![
                prop::collection::vec(any::<u8>(), 0..40),
                prop::collection::vec(prop::sample::select(br"/a:,=\*?[]#01RWO5G%".to_vec()), 0..40),
            ],
        ) {
            if let Ok(branches) = parse_source(OsStr::from_bytes(&source)) {
                prop_assert!(!branches.is_empty());
                let text = branches.iter().map(ToString::to_string).collect::<Vec<_>>().join(":");
                prop_assert_eq!(parse_source(OsStr::new(&text)), Ok(branches));
            }
        }
    }
}
