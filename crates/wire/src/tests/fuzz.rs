//! Bodies of the fuzz targets (`fuzz/`), with random bytes and with mutated requests.
//!
//! `PROPTEST_CASES=100000 cargo test -p fsstack-wire fuzz` runs more cases. `cargo +nightly fuzz run request --fuzz-dir
//! crates/wire/fuzz` (and `dirents`) runs without end and searches for inputs that reach new code.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use super::seed::seed;
use super::{dirents_body, request_body};
use crate::*;

/// Input of the target; the first byte selects how it is read.
fn input(first: u8, message: &[u8]) -> Vec<u8> {
    [&[first], message].concat()
}

proptest! {
    #[test]
    fn any_bytes_are_a_request_or_a_refusal(first in 0_u8..4, message in vec(any::<u8>(), 0..300), opcode in 0_u8..60) {
        request_body::request(&input(first, &message));
        // A known opcode passes the first checks.
        let mut message = message;
        if let Some(at) = message.get_mut(4..8) {
            at.copy_from_slice(&u32::from(opcode).to_ne_bytes());
        }
        request_body::request(&input(first, &message));
    }

    #[test]
    fn a_changed_request_is_a_request_or_a_refusal(
        seed in seed(),
        first in 0_u8..4,
        changes in vec((any::<Index>(), any::<u8>()), 1..5),
        cut in any::<Index>(),
        doubled in any::<Index>(),
    ) {
        for op in seed.operations() {
            let mut message = encode::request(seed.abi, &seed.header(), &op, &seed.groups).contiguous();
            for (at, byte) in &changes {
                let at = at.index(message.len());
                message[at] = *byte;
            }
            request_body::request(&input(first, &message));
            request_body::request(&input(first | 2, &message[..cut.index(message.len())]));
            let again = message[doubled.index(message.len())..].to_vec();
            message.extend(again);
            request_body::request(&input(first | 2, &message));
        }
    }

    #[test]
    fn any_listing_stays_in_its_room(room in 0_u16..4096, size in any::<u16>(), rows in vec((any::<bool>(), vec(any::<u8>(), 0..300)), 0..20)) {
        dirents_body::dirents(room, size, &rows);
    }
}
