//! Listings parse row by row, stay in bounds, and leak none of the buffer's old content in the padding.

use proptest::collection::vec;
use proptest::prelude::*;
use zerocopy::FromBytes;

use crate::*;

#[derive(Clone, Debug, PartialEq)]
struct Row {
    nodeid: Option<u64>,
    ino: u64,
    off: u64,
    kind: u32,
    name: Vec<u8>,
}

fn row() -> impl Strategy<Value = Row> {
    let name = vec(1u8..=255, 1..40);
    (proptest::option::of(1u64..), any::<u64>(), any::<u64>(), 0u32..16, name)
        .prop_map(|(nodeid, ino, off, kind, name)| Row { nodeid, ino, off, kind, name })
}

/// Parses the rows as the kernel does. Returns them and the padding.
fn walk(mut bytes: &[u8], plus: bool) -> (Vec<Row>, Vec<u8>) {
    let (mut rows, mut padding) = (Vec::new(), Vec::new());
    while !bytes.is_empty() {
        let before = bytes.len();
        let nodeid = plus.then(|| {
            let (entry, after) = abi::EntryOut::read_from_prefix(bytes).unwrap();
            bytes = after;
            entry.nodeid
        });
        let (dirent, after) = abi::Dirent::read_from_prefix(bytes).unwrap();
        let (name, after) = after.split_at(dirent.namelen as usize);
        let unaligned = before - after.len();
        let (pad, after) = after.split_at(unaligned.next_multiple_of(8) - unaligned);
        padding.extend(pad);
        bytes = after;
        let nodeid = nodeid.filter(|nodeid| *nodeid != 0);
        rows.push(Row { nodeid, ino: dirent.ino, off: dirent.off, kind: dirent.kind, name: name.to_vec() });
    }
    (rows, padding)
}

proptest! {
    #[test]
    fn rows_read_back(rows in vec(row(), 0..20), size in 0u32..1500, room in 0usize..1500, plus in any::<bool>()) {
        let mut buf = vec![0xff; room];
        let mut writer = DirentWriter::new(&mut buf, size);
        let mut written = Vec::new();
        for row in &rows {
            let before = writer.len();
            let fits = match plus {
                true => {
                    let entry = row.nodeid.map(|nodeid| Entry { nodeid, ..Entry::default() });
                    let foretold = writer.plus_fits(row.name.len());
                    let fits = writer.plus(entry.as_ref(), row.ino, row.off, row.kind, &row.name);
                    prop_assert_eq!(fits, foretold);
                    fits
                }
                false => writer.plain(row.ino, row.off, row.kind, &row.name),
            };
            if !fits {
                prop_assert_eq!(writer.len(), before);
                break;
            }
            written.push(Row { nodeid: row.nodeid.filter(|_| plus), ..row.clone() });
        }
        let len = writer.len();
        prop_assert_eq!(writer.is_empty(), written.is_empty());
        prop_assert!(len <= room && len <= size as usize && len.is_multiple_of(8));
        prop_assert!(buf[len..].iter().all(|byte| *byte == 0xff));
        let (read, padding) = walk(&buf[..len], plus);
        prop_assert_eq!(read, written);
        prop_assert!(padding.iter().all(|byte| *byte == 0));
    }
}

#[test]
fn a_row_that_just_fits_fits() {
    let mut buf = [0; 32];
    assert!(DirentWriter::new(&mut buf, 32).plain(1, 1, 4, b"12345678"));
    assert!(!DirentWriter::new(&mut buf, 32).plain(1, 1, 4, b"123456789"));
    assert!(!DirentWriter::new(&mut buf, 31).plain(1, 1, 4, b"1"));
    let mut buf = [0; 160];
    assert!(DirentWriter::new(&mut buf, u32::MAX).plus(None, 1, 1, 4, b".."));
}

#[test]
fn a_listing_is_part_of_its_answer() {
    let mut buf = [0; 100];
    let mut answer = Answer::new(&mut buf);
    let fits = answer.dirents(64, |rows| {
        [rows.plain(1, 1, 4, b"."), rows.plain(1, 2, 4, b".."), rows.plain(2, 3, 8, b"file")]
    });
    assert_eq!((fits, answer.len()), ([true, true, false], 64));
}
