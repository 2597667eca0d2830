//! Requests that are too short, too long or unknown are refused; those that expect no reply get none.

use proptest::collection::vec;
use proptest::prelude::*;

use super::seed::seed;
use crate::*;

const ABI: Abi = Abi { setxattr_ext: false };

/// Makes a message from these fields, with a correct length.
fn message(opcode: Opcode, op_in: &[u8], rest: &[u8]) -> Vec<u8> {
    let mut message = [&[0; Header::LEN], op_in, rest].concat();
    let len = u32::try_from(message.len()).unwrap();
    message[..4].copy_from_slice(&len.to_ne_bytes());
    message[4..8].copy_from_slice(&opcode.raw().to_ne_bytes());
    message[8..16].copy_from_slice(&77u64.to_ne_bytes());
    message
}

fn refused(message: &[u8]) -> Refused {
    Request::parse_contiguous(ABI, message).unwrap_err()
}

proptest! {
    #[test]
    fn cut_requests_are_refused(seed in seed()) {
        for op in seed.operations() {
            let whole = encode::request(seed.abi, &seed.header(), &op, &[]).contiguous();
            for cut in 0..whole.len() {
                let mut message = whole[..cut].to_vec();
                prop_assert!(Request::parse_contiguous(seed.abi, &message).is_err());
                if let Some(len) = message.get_mut(..4) {
                    len.copy_from_slice(&u32::try_from(cut).unwrap().to_ne_bytes());
                }
                prop_assert!(Request::parse_contiguous(seed.abi, &message).is_err());
            }
        }
    }

    #[test]
    fn cut_slices_are_refused(seed in seed()) {
        for op in seed.operations() {
            let whole = encode::request(seed.abi, &seed.header(), &op, &[]);
            let (header, op_in, rest) = (&whole.header, &whole.op_in, &whole.rest);
            prop_assert!(Request::parse(seed.abi, &header[..39], op_in, rest).is_err());
            for cut in 0..op_in.len() {
                prop_assert!(Request::parse(seed.abi, header, &op_in[..cut], rest).is_err());
            }
            for cut in 0..rest.len() {
                prop_assert!(Request::parse(seed.abi, header, op_in, &rest[..cut]).is_err());
            }
        }
    }

    #[test]
    fn bytes_that_belong_to_no_field_are_refused(seed in seed(), more in vec(any::<u8>(), 1..9)) {
        for op in seed.operations() {
            let mut slices = encode::request(seed.abi, &seed.header(), &op, &[]);
            slices.rest.extend(&more);
            let parsed = Request::parse(seed.abi, &slices.header, &slices.op_in, &slices.rest);
            prop_assert!(parsed.is_err());
        }
    }

    #[test]
    fn any_bytes_are_parsed_or_refused(
        header in vec(any::<u8>(), 0..60), op_in in vec(any::<u8>(), 0..130), rest in vec(any::<u8>(), 0..200)
    ) {
        for abi in [ABI, Abi { setxattr_ext: true }] {
            let _ = Request::parse(abi, &header, &op_in, &rest);
            let _ = Request::parse_contiguous(abi, &rest);
        }
    }
}

#[test]
fn unknown_requests_are_enosys() {
    for (raw, opcode) in [(26, Opcode::Init), (48, Opcode::SetupMapping)] {
        let why = Why::UnknownOpcode(raw);
        assert_eq!(refused(&message(opcode, &[], &[])), Refused { unique: Some(77), why });
    }
    let mut unknown = message(Opcode::Statfs, &[], &[]);
    unknown[4..8].copy_from_slice(&4096u32.to_ne_bytes());
    let refusal = refused(&unknown);
    assert_eq!(refusal, Refused { unique: Some(77), why: Why::UnknownOpcode(4096) });
    assert_eq!(refusal.errno(), 38);
    assert_eq!(refusal.to_string(), "unknown opcode 4096");
}

#[test]
fn requests_without_an_answer_get_none() {
    for opcode in [Opcode::Forget, Opcode::BatchForget, Opcode::Interrupt, Opcode::NotifyReply] {
        assert_eq!(refused(&message(opcode, &[1], &[])).unique, None);
    }
    assert_eq!(refused(&message(Opcode::Getattr, &[1], &[])).unique, Some(77));
    assert_eq!(refused(&[0; 39]), Refused { unique: None, why: Why::Malformed });
    assert_eq!(refused(&[0; 39]).errno(), 5);
}

#[test]
fn a_write_of_another_size_is_refused() {
    let mut op_in = [0; 40];
    op_in[16..20].copy_from_slice(&3u32.to_ne_bytes());
    assert!(Request::parse_contiguous(ABI, &message(Opcode::Write, &op_in, b"abc")).is_ok());
    assert_eq!(refused(&message(Opcode::Write, &op_in, b"ab")).why, Why::Malformed);
    assert_eq!(refused(&message(Opcode::Write, &op_in, b"abcd")).why, Why::Malformed);
}

#[test]
fn forgets_of_another_count_are_refused() {
    let op_in = [2u32.to_ne_bytes(), [0; 4]].concat();
    assert!(Request::parse_contiguous(ABI, &message(Opcode::BatchForget, &op_in, &[0; 32])).is_ok());
    assert_eq!(refused(&message(Opcode::BatchForget, &op_in, &[0; 31])).why, Why::Malformed);
    // 16 times this count overflows to 0 in 32 bits.
    let op_in = [(1u32 << 28).to_ne_bytes(), [0; 4]].concat();
    assert_eq!(refused(&message(Opcode::BatchForget, &op_in, &[])).why, Why::Malformed);
}

#[test]
fn nanoseconds_that_mean_something_else_are_refused() {
    const UTIME_OMIT: u32 = 0x3fff_fffe;
    let op_in = |valid: u32, nsec: u32| {
        let mut op_in = [0; 88];
        op_in[..4].copy_from_slice(&valid.to_ne_bytes());
        op_in[56..60].copy_from_slice(&nsec.to_ne_bytes());
        message(Opcode::Setattr, &op_in, &[])
    };
    assert!(Request::parse_contiguous(ABI, &op_in(abi::FATTR_ATIME, 999_999_999)).is_ok());
    assert_eq!(refused(&op_in(abi::FATTR_ATIME, UTIME_OMIT)).why, Why::Malformed);
    assert!(Request::parse_contiguous(ABI, &op_in(abi::FATTR_MTIME, UTIME_OMIT)).is_ok());
    let now = op_in(abi::FATTR_ATIME | abi::FATTR_ATIME_NOW, UTIME_OMIT);
    let set = SetAttr { atime: Some(SetTime::Now), ..SetAttr::default() };
    assert_eq!(Request::parse_contiguous(ABI, &now).unwrap().op, Operation::Setattr(set));
}

#[test]
fn a_copy_is_no_longer_than_its_answer_can_tell() {
    let mut op_in = [0; 56];
    op_in[40..48].copy_from_slice(&u64::MAX.to_ne_bytes());
    let asked = |opcode| match Request::parse_contiguous(ABI, &message(opcode, &op_in, &[])).unwrap().op {
        Operation::CopyFileRange { len, width, .. } => (len, width),
        other => panic!("{other:?}"),
    };
    assert_eq!(asked(Opcode::CopyFileRange), (0xffff_f000, CopyWidth::Bits32));
    assert_eq!(asked(Opcode::CopyFileRange64), (u64::MAX, CopyWidth::Bits64));
}
