//! Extensions: groups are found anywhere, contexts are skipped, wrong sizes are refused.

use crate::*;

fn extension(size: u32, kind: u32, body: &[u8]) -> Vec<u8> {
    [&size.to_ne_bytes(), &kind.to_ne_bytes(), body].concat()
}

fn groups(extensions: &[u8]) -> Result<Vec<u32>, Why> {
    let rest = [b"odd\0".as_slice(), extensions].concat();
    Groups::split(&rest, extensions.len()).map(|(rest, groups)| {
        assert_eq!(rest, b"odd\0");
        groups.collect()
    })
}

#[test]
fn groups_follow_a_security_context() {
    let context = extension(24, 1, b"context and label");
    let context = [context.as_slice(), &[0; 24][context.len().min(24)..]].concat();
    let context = &context[..24];
    let named = encode::groups_extension(&[5, 6]);
    assert_eq!(groups(&[context, &named].concat()), Ok(vec![5, 6]));
    assert_eq!(groups(&[&named, context].concat()), Ok(vec![5, 6]));
    assert_eq!(groups(context), Ok(vec![]));
    assert_eq!(groups(&[]), Ok(vec![]));
}

#[test]
fn unknown_trailing_fields_are_skipped() {
    let later = extension(16, 99, &[7; 8]);
    assert_eq!(groups(&[later, encode::groups_extension(&[1])].concat()), Ok(vec![1]));
}

#[test]
fn sizes_that_lie_are_refused() {
    let count = |count: u32, gids: usize| [count.to_ne_bytes().to_vec(), vec![0; gids * 4]].concat();
    let lies = [
        extension(0, 32, &[0; 8]),
        extension(7, 32, &[0; 8]),
        extension(8, 32, &[]),
        extension(24, 32, &[0; 8]),
        extension(u32::MAX, 32, &[0; 8]),
        extension(u32::MAX, 1, &[0; 8]),
        extension(16, 32, &count(2, 1)),
        extension(16, 32, &count(u32::MAX, 1)),
        extension(16, 32, &count(1 << 30, 1)),
        vec![0; 4],
    ];
    for lie in lies {
        assert_eq!(groups(&lie), Err(Why::Malformed), "{lie:?}");
    }
    assert_eq!(Groups::split(&[0; 7], 8).unwrap_err(), Why::Malformed);
}

#[test]
fn the_caller_has_as_many_groups_as_it_says() {
    let named = encode::groups_extension(&[3, 4, 5]);
    let (_, groups) = Groups::split(&named, named.len()).unwrap();
    assert_eq!(groups.len(), 3);
}
