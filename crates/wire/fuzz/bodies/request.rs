//! Body of the fuzz target `request`; the crate's own tests run it too, with random numbers.

use fsstack_wire::{Abi, Header, Opcode, Request, encode};

fn same_when_built_again(abi: Abi, request: Request<'_>) {
    let groups: Vec<u32> = request.groups.collect();
    let slices = encode::request(abi, &request.header, &request.op, &groups);
    let again = slices.contiguous();
    let again = Request::parse_contiguous(abi, &again).expect("what was understood can be built");
    assert_eq!((again.op, again.groups), (request.op, request.groups));
    assert_eq!(Request::parse(abi, &slices.header, &slices.op_in, &slices.rest), Ok(again));
}

/// Any bytes are a request or a refusal; a parsed request that is encoded again parses to the same.
pub(super) fn request(input: &[u8]) {
    let Some((&first, message)) = input.split_first() else { return };
    let abi = Abi { setxattr_ext: first & 1 == 1 };
    let mut message = message.to_vec();
    // Half of the inputs get a correct length, to pass the first check.
    if let (true, Ok(len)) = (first & 2 == 2, u32::try_from(message.len()))
        && let Some(at) = message.get_mut(..4)
    {
        at.copy_from_slice(&len.to_ne_bytes());
    }
    if let Ok(request) = Request::parse_contiguous(abi, &message) {
        same_when_built_again(abi, request);
    }
    if let Some((header, body)) = message.split_at_checked(Header::LEN) {
        let opcode = header[4..8].try_into().map(u32::from_ne_bytes).ok().and_then(Opcode::from_raw);
        let op_len = opcode.map_or(0, |opcode| opcode.op_len(abi)).min(body.len());
        let (op_in, rest) = body.split_at(op_len);
        if let Ok(request) = Request::parse(abi, header, op_in, rest) {
            same_when_built_again(abi, request);
        }
    }
}
