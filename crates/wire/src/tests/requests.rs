//! Every request that can be encoded parses back to itself, from one slice and from three.

use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;

use super::seed::seed;
use crate::*;

proptest! {
    #[test]
    fn built_requests_parse_back(seed in seed(), stale in any::<u8>()) {
        for op in seed.operations() {
            let slices = encode::request(seed.abi, &seed.header(), &op, &seed.groups);
            let message = slices.contiguous();
            let one = Request::parse_contiguous(seed.abi, &message).unwrap();
            prop_assert_eq!(one.op, op);
            prop_assert_eq!(one.groups.collect::<Vec<_>>(), seed.groups.clone());
            let header = Header { len: one.header.len, opcode: one.header.opcode,
                total_extlen: one.header.total_extlen, ..seed.header() };
            prop_assert_eq!(one.header, header);
            prop_assert_eq!(header.len as usize, message.len());

            // The ring's buffers are longer than their content and keep older bytes after it.
            let (mut header, mut op_in) = (slices.header.clone(), slices.op_in.clone());
            header.resize(128, stale);
            op_in.resize(128, stale);
            prop_assert_eq!(Request::parse(seed.abi, &header, &op_in, &slices.rest).unwrap(), one);
        }
    }

    #[test]
    fn alignment_does_not_matter(seed in seed(), shift in 0usize..8) {
        for op in seed.operations() {
            let message = encode::request(seed.abi, &seed.header(), &op, &seed.groups).contiguous();
            let shifted = [vec![0; shift], message].concat();
            prop_assert_eq!(Request::parse_contiguous(seed.abi, &shifted[shift..]).unwrap().op, op);
        }
    }

    /// An accepted request has one meaning: encoded again, it parses to the same.
    #[test]
    fn accepted_requests_can_be_built(
        mut bytes in vec(any::<u8>(), 40..200), opcode in 0u32..60, extensions in 0u16..3, setxattr_ext in any::<bool>()
    ) {
        let abi = Abi { setxattr_ext };
        let len = u32::try_from(bytes.len()).unwrap();
        bytes[..4].copy_from_slice(&len.to_ne_bytes());
        bytes[4..8].copy_from_slice(&opcode.to_ne_bytes());
        bytes[36..38].copy_from_slice(&extensions.to_ne_bytes());
        if let Ok(request) = Request::parse_contiguous(abi, &bytes) {
            let groups: Vec<u32> = request.groups.collect();
            let again = encode::request(abi, &request.header, &request.op, &groups).contiguous();
            let again = Request::parse_contiguous(abi, &again).unwrap();
            prop_assert_eq!((again.op, again.groups), (request.op, request.groups));
        }
    }

    #[test]
    fn forgets_know_how_many_they_are(rows in vec(any::<(u64, u64)>(), 0..20)) {
        let bytes: Vec<u8> = rows.iter().flat_map(|(node, n)| [node.to_ne_bytes(), n.to_ne_bytes()].concat()).collect();
        let forgets = Forgets::new(&bytes);
        prop_assert_eq!(forgets.len(), rows.len());
        prop_assert_eq!(forgets.collect::<Vec<_>>(), rows);
    }
}

#[test]
fn every_opcode_is_built_or_refused_on_purpose() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let seed = seed().new_tree(&mut runner).unwrap().current();
    let opcode = |op: &Operation<'_>| {
        let header = encode::request(seed.abi, &seed.header(), op, &[]).header;
        u32::from_ne_bytes(header[4..8].try_into().unwrap())
    };
    let built: BTreeSet<u32> = seed.operations().iter().map(opcode).collect();
    let known: BTreeSet<u32> = (0..10_000).filter(|raw| Opcode::from_raw(*raw).is_some()).collect();
    let unserved = [Opcode::Init, Opcode::NotifyReply, Opcode::SetupMapping, Opcode::RemoveMapping];
    let unserved: BTreeSet<u32> = unserved.map(Opcode::raw).into();
    assert_eq!(known, &built | &unserved);
    assert!(built.is_disjoint(&unserved));
    assert_eq!(known.last(), Some(&53));
}

#[test]
fn structs_take_what_the_kernel_says() {
    let plain = Abi { setxattr_ext: false };
    let lens = [
        (Opcode::Lookup, 0),
        (Opcode::Forget, 8),
        (Opcode::Getattr, 16),
        (Opcode::Setattr, 88),
        (Opcode::Mknod, 16),
        (Opcode::Mkdir, 8),
        (Opcode::Rename, 8),
        (Opcode::Rename2, 16),
        (Opcode::Link, 8),
        (Opcode::Open, 8),
        (Opcode::Read, 40),
        (Opcode::Write, 40),
        (Opcode::Release, 24),
        (Opcode::Fsync, 16),
        (Opcode::Setxattr, 8),
        (Opcode::Getxattr, 8),
        (Opcode::Flush, 24),
        (Opcode::Getlk, 48),
        (Opcode::Access, 8),
        (Opcode::Create, 16),
        (Opcode::Interrupt, 8),
        (Opcode::Bmap, 16),
        (Opcode::Ioctl, 32),
        (Opcode::Poll, 24),
        (Opcode::BatchForget, 8),
        (Opcode::Fallocate, 32),
        (Opcode::Lseek, 24),
        (Opcode::CopyFileRange, 56),
        (Opcode::Syncfs, 8),
        (Opcode::Statx, 24),
    ];
    for (opcode, len) in lens {
        assert_eq!(opcode.op_len(plain), len, "{opcode:?}");
    }
    assert_eq!(Opcode::Setxattr.op_len(Abi { setxattr_ext: true }), 16);
    assert_eq!(Header::LEN, 40);
}
