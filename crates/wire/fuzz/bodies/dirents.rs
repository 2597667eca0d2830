//! Body of the fuzz target `dirents`; the crate's own tests run it too, with random numbers.

use fsstack_wire::{DirentWriter, Entry};

/// Listings of any names stay within any size, and a row that does not fit leaves nothing behind.
pub(super) fn dirents(room: u16, size: u16, rows: &[(bool, Vec<u8>)]) {
    let mut buf = vec![0xff; room.into()];
    let mut writer = DirentWriter::new(&mut buf, size.into());
    for (plus, name) in rows {
        let before = writer.len();
        let fits = match plus {
            true => writer.plus(Some(&Entry::default()), 1, 1, 8, name),
            false => writer.plain(1, 1, 8, name),
        };
        assert_eq!(fits, before < writer.len());
    }
    let len = writer.len();
    assert!(len <= room.min(size).into());
    assert!(buf[len..].iter().all(|byte| *byte == 0xff));
}
