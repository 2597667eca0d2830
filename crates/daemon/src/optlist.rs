//! Splits a list after `-o` at its commas; `"..."` and backslashes quote.
//!
//! mount(8) passes quotes on, and users of libfuse write `\,`. Both are accepted, so a value can contain any byte. A
//! backslash before any other byte is literal, as in a path.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// One option as typed: `name` or `name=value`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Word {
    /// Text before the first `=`.
    pub(crate) name: OsString,
    /// Text after it; an empty value differs from none.
    pub(crate) value: Option<OsString>,
}

/// The list ends inside quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a quotation mark is not closed")]
pub(crate) struct Unclosed;

/// Splits a list into options, in order; empty ones (`a,,b`) are dropped.
pub(crate) fn split(list: &OsStr) -> Result<Vec<Word>, Unclosed> {
    let mut words = Vec::new();
    let mut open = Pending::default();
    let mut quoted = false;
    let mut bytes = list.as_bytes().iter().copied().peekable();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' => {
                let taken = bytes.next_if(|next| matches!(next, b',' | b'"' | b'\\'));
                open.push(taken.unwrap_or(b'\\'));
            }
            b'"' => quoted = !quoted,
            b',' if !quoted => words.extend(open.take()),
            b'=' if !quoted && open.value.is_none() => open.value = Some(Vec::new()),
            plain => open.push(plain),
        }
    }
    words.extend(open.take());
    if quoted { Err(Unclosed) } else { Ok(words) }
}

#[derive(Default)]
struct Pending {
    name: Vec<u8>,
    value: Option<Vec<u8>>,
}

impl Pending {
    fn push(&mut self, byte: u8) {
        self.value.as_mut().unwrap_or(&mut self.name).push(byte);
    }

    fn take(&mut self) -> Option<Word> {
        let Self { name, value } = std::mem::take(self);
        let word = Word { name: OsString::from_vec(name), value: value.map(OsString::from_vec) };
        (!word.name.is_empty() || word.value.is_some()).then_some(word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};

    fn check(list: &str, expected: Expect) {
        let told = match split(OsStr::new(list)) {
            Ok(words) => words
                .iter()
                .map(|word| match &word.value {
                    Some(value) => format!("{:?} = {:?}", word.name, value),
                    None => format!("{:?}", word.name),
                })
                .collect::<Vec<_>>()
                .join("; "),
            Err(unclosed) => unclosed.to_string(),
        };
        expected.assert_eq(&told);
    }

    #[test]
    fn commas_separate_and_empty_words_vanish() {
        check("rw,,nofail,create=epmfs>mfs,", expect![[r#""rw"; "nofail"; "create" = "epmfs>mfs""#]]);
    }

    #[test]
    fn quotes_and_backslashes_keep_commas() {
        check(
            r#"fsname="a,b",log=/x\,y,config=/a\b"#,
            expect![[r#""fsname" = "a,b"; "log" = "/x,y"; "config" = "/a\\b""#]],
        );
    }

    #[test]
    fn the_first_equals_sign_ends_the_name() {
        check("comment=a=b,fsname=", expect![[r#""comment" = "a=b"; "fsname" = """#]]);
    }

    #[test]
    fn an_open_quotation_is_refused() {
        check(r#"fsname="a,b"#, expect!["a quotation mark is not closed"]);
    }

    proptest::proptest! {
        #[test]
        fn any_words_are_read_back_as_they_were(words in proptest::collection::vec("[^\\PC=]{1,8}", 1..5), value in "\\PC{0,12}") {
            let escape = |text: &str| text.replace('\\', r"\\").replace(',', r"\,").replace('"', "\\\"");
            let list = words.iter().map(|name| format!("{}={}", escape(name), escape(&value))).collect::<Vec<_>>().join(",");
            let read = split(OsStr::new(&list)).unwrap();
            let expected: Vec<_> = words.iter().map(|name| Word { name: name.into(), value: Some((&value).into()) }).collect();
            proptest::prop_assert_eq!(read, expected);
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..64)) {
            let _ = split(OsStr::from_bytes(&bytes));
        }
    }
}
