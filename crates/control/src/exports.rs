//! Tables of exports: the administrator's (exports(5)), the one that exportfs(8) made of it, and the kernel server's.
//!
//! One grammar fits all three: a path, then clients with their options behind them in brackets. They differ in what is
//! escaped, and all write it as the octal number of the byte; exports(5) has quotes, comments and continued lines besides.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use fsstack_pool::Printable;
use fsstack_sys::mounts::unescape;

/// Table that exportfs(8) has made: a line for each client of each path.
pub const ETAB: &str = "/var/lib/nfs/etab";
/// Table of the kernel's server; its clients are mountd's domains, of which several are joined to one name.
const KERNEL: &str = "/proc/fs/nfsd/exports";

/// A line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportLine {
    /// Which of the file, from 1.
    pub number: usize,
    /// Exported path.
    pub path: PathBuf,
    /// Clients; none, in exports(5): everybody.
    pub clients: Vec<ExportClient>,
}

/// A client of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportClient {
    /// A host, a network, `*`.
    pub name: String,
    /// Options, as written between the brackets.
    pub options: String,
}

impl ExportClient {
    /// The value of an option, empty for one that takes none.
    pub fn option(&self, name: &str) -> Option<&str> {
        self.options.split(',').find_map(|option| {
            let (key, value) = option.split_once('=').unwrap_or((option, ""));
            (key == name).then_some(value)
        })
    }
}

impl ExportLine {
    /// Whether what is exported is `mount_point`, or lies below it.
    pub fn is_of(&self, mount_point: &Path) -> bool {
        self.path.starts_with(mount_point)
    }
}

/// Reads the table that exportfs(8) has made.
pub fn exported() -> io::Result<Vec<ExportLine>> {
    Ok(parse(&fs::read(ETAB)?))
}

/// Whether the kernel's server knows `mount_point`, or a path below it, and has not dropped it.
pub fn is_known_to_the_kernel(mount_point: &Path) -> bool {
    parse(&fs::read(KERNEL).unwrap_or_default()).iter().any(|line| line.is_of(mount_point))
}

/// Where the files in `etc` that the server reads, but for `own`, export `mount_point`: `FILE:LINE`.
pub fn named_elsewhere(etc: &Path, own: &Path, mount_point: &Path) -> Option<String> {
    let further =
        fs::read_dir(etc.join("exports.d")).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut further: Vec<PathBuf> =
        further.filter(|path| path.extension().is_some_and(|ending| ending == "exports")).collect();
    further.sort();
    std::iter::once(etc.join("exports")).chain(further).filter(|file| file != own).find_map(|file| {
        let lines = parse(&fs::read(&file).ok()?);
        let line = lines.into_iter().find(|line| line.path == mount_point)?;
        Some(format!("{}:{}", Printable::path(&file), line.number))
    })
}

/// A path as exports(5) wants it: blanks, quotes, comments and backslashes as octal numbers.
pub fn escaped(path: &Path) -> String {
    let mut text = String::new();
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'!'..=b'~' if !b"\"#\\".contains(byte) => text.push(char::from(*byte)),
            // Writing to a string does not fail.
            _ => drop(write!(text, "\\{byte:03o}")),
        }
    }
    text
}

/// The lines of a table, as nfs-utils reads them: a comment begins where a word would, and ends with its line, whatever
/// that ends in; any other line is continued by a backslash at its end; quotes keep blanks and ends of lines in a word.
pub fn parse(table: &[u8]) -> Vec<ExportLine> {
    let mut text = Text { rest: table, number: 1 };
    let mut lines = Vec::new();
    while !text.rest.is_empty() {
        text.skip_blanks();
        let number = text.number;
        if let Some(path) = text.word() {
            let words = std::iter::from_fn(|| {
                text.skip_blanks();
                text.word()
            });
            let clients = words.filter(|word| !word.starts_with(b"-")).map(|word| client(&word)).collect();
            lines.push(ExportLine { number, path: unescape(&path).into(), clients });
        }
        text.skip_line();
    }
    lines
}

/// Rest of a table.
struct Text<'a> {
    rest: &'a [u8],
    /// Number of the line that it begins in.
    number: usize,
}

impl Text<'_> {
    /// The next byte, and how many it takes: what continues a line is one blank.
    fn peek(&self) -> Option<(u8, usize)> {
        match self.rest {
            [b'\\', b'\n', more @ ..] => {
                let indented = more.iter().take_while(|byte| b" \t".contains(byte)).count();
                Some((b' ', 2 + indented))
            }
            [byte, ..] => Some((*byte, 1)),
            [] => None,
        }
    }

    fn skip(&mut self, count: usize) {
        let (skipped, rest) = self.rest.split_at(count);
        self.number += skipped.iter().filter(|byte| **byte == b'\n').count();
        self.rest = rest;
    }

    /// Up to a word, or to the end of the line.
    fn skip_blanks(&mut self) {
        while let Some((byte, len)) = self.peek() {
            match byte {
                b' ' | b'\t' | b'\r' => self.skip(len),
                b'#' => return self.skip(self.line()),
                _ => return,
            }
        }
    }

    /// The next word, from its first byte on; none where the line ends.
    fn word(&mut self) -> Option<Vec<u8>> {
        let (mut word, mut quoted) = (Vec::new(), false);
        while let Some((byte, len)) = self.peek() {
            match byte {
                b'"' => quoted = !quoted,
                b' ' | b'\t' | b'\r' | b'\n' if !quoted => break,
                _ => word.push(byte),
            }
            self.skip(len);
        }
        (!word.is_empty()).then_some(word)
    }

    fn skip_line(&mut self) {
        self.skip((self.line() + 1).min(self.rest.len()));
    }

    /// How much is left of the line.
    fn line(&self) -> usize {
        self.rest.iter().take_while(|byte| **byte != b'\n').count()
    }
}

fn client(word: &[u8]) -> ExportClient {
    let word = unescape(word).to_string_lossy().into_owned();
    let (name, options) = word.split_once('(').unwrap_or((&word, ""));
    ExportClient { name: name.to_owned(), options: options.strip_suffix(')').unwrap_or(options).to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;

    /// Path, and each client with its options.
    fn read(table: &[u8]) -> Vec<String> {
        let shown = |line: &ExportLine| {
            let clients = line.clients.iter().map(|client| format!(" {}({})", client.name, client.options));
            format!("{} {}{}", line.number, Printable::path(&line.path), clients.collect::<String>())
        };
        parse(table).iter().map(shown).collect()
    }

    #[test]
    fn each_of_the_three_tables_is_read() {
        let etab = b"/srv/pool\t10.0.0.0/8(rw,sync,fsid=1)\n/srv/my\\040pool\t*(ro)\n";
        assert_eq!(read(etab), ["1 /srv/pool 10.0.0.0/8(rw,sync,fsid=1)", "2 /srv/my pool *(ro)"]);
        let kernel = b"# Version 1.1\n# Path Client(Flags) # IPs\n/srv/pool\t10.0.0.0/8,*(rw,root_squash)\n";
        assert_eq!(read(kernel), ["3 /srv/pool 10.0.0.0/8,*(rw,root_squash)"]);
        let written = b"\n# /srv/no h(rw)\n\"/srv/my pool\" -ro,sync h1 \\\n  h2(rw) # why\n/srv/all\r\n";
        assert_eq!(read(written), ["3 /srv/my pool h1() h2(rw)", "5 /srv/all"]);
    }

    /// Follows exportfs(8) of nfs-utils 2.6.2.
    #[test]
    fn a_comment_ends_with_its_line_and_begins_with_a_word() {
        for (table, lines) in [
            (&b"# ours \\\n/srv/a h(rw)\n"[..], &["2 /srv/a h(rw)"][..]),
            (b"/srv/a h(rw) # why \\\n/srv/b h(ro)", &["1 /srv/a h(rw)", "2 /srv/b h(ro)"]),
            (b"/srv/a h(rw) \\\n\t# why\n/srv/b h(ro)\n", &["1 /srv/a h(rw)", "3 /srv/b h(ro)"]),
            (b"/srv/a#b h(rw)\n\"/srv/#c d\" h(rw)\n", &["1 /srv/a#b h(rw)", "2 /srv/#c d h(rw)"]),
            (b"\"/srv/a\\\n  b\" h(rw) \\\n\n/srv/c", &["1 /srv/a b h(rw)", "4 /srv/c"]),
        ] {
            assert_eq!(read(table), lines);
        }
    }

    #[test]
    fn a_path_is_its_bytes_however_it_is_escaped() {
        for table in [&b"/srv/Bl\xc3\xb6cke\t*(rw)\n"[..], b"/srv/Bl\\303\\266cke *(rw)\n"] {
            assert!(parse(table)[0].is_of(Path::new("/srv/Bl\u{f6}cke")));
        }
        // Somebody else's line is no text.
        let table = b"/srv/\xff\t*(rw)\n/srv/pool\t*(rw)\n";
        assert!(parse(table)[0].is_of(Path::new(OsStr::from_bytes(b"/srv/\xff"))));
        assert!(parse(table)[1].is_of(Path::new("/srv/pool")));
    }

    #[test]
    fn a_pool_is_exported_by_what_lies_in_it_too() {
        let line = |table: &[u8]| parse(table).remove(0);
        assert!(line(b"/srv/pool/sub *(rw)").is_of(Path::new("/srv/pool")));
        assert!(line(b"/srv/pool/ *(rw)").is_of(Path::new("/srv/pool")));
        assert!(!line(b"/srv/pool2 *(rw)").is_of(Path::new("/srv/pool")));
        assert!(!line(b"/srv *(rw)").is_of(Path::new("/srv/pool")));
    }

    #[test]
    fn options_are_known_by_their_names() {
        let client = &parse(b"/srv/pool *(rw,mountpoint,fsid=5)")[0].clients[0];
        assert_eq!(client.option("fsid"), Some("5"));
        assert_eq!(client.option("mountpoint"), Some(""));
        assert_eq!(client.option("fs"), None);
    }

    #[test]
    fn an_existing_export_is_found_with_its_file_and_line() {
        let etc = tempfile::tempdir().unwrap();
        let own = etc.path().join("exports.d/fsstack-pool.exports");
        let found = || named_elsewhere(etc.path(), &own, Path::new("/srv/pool"));
        assert_eq!(found(), None);
        fs::create_dir(etc.path().join("exports.d")).unwrap();
        for file in [own.clone(), etc.path().join("exports.d/old.exports~")] {
            fs::write(file, "/srv/pool *(rw)\n").unwrap();
        }
        assert_eq!(found(), None);
        let other = etc.path().join("exports.d/b.exports");
        fs::write(&other, "/srv/other *(rw)\n/srv/pool/ h(ro)\n").unwrap();
        assert_eq!(found(), Some(format!("{}:2", other.display())));
        fs::write(etc.path().join("exports"), "# ours\n\n/srv/pool h(ro)\n").unwrap();
        assert_eq!(found(), Some(format!("{}:3", etc.path().join("exports").display())));
    }
}
