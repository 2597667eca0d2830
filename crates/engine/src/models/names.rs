//! Names that several threads make at once.

use std::sync::Arc;

use fsstack_sync::{Mutex, model, thread};

use super::{ID, X};
use crate::inode::{Copies, Inode};

/// A name is made once, though each of its makers asks all branches for it and then makes it on a branch of its own.
#[test]
fn a_name_is_made_on_one_branch() {
    model::check(|| {
        let dir = Arc::new(Inode::dir(ID, &Copies::known([(X, 10)])));
        let made = Arc::new(Mutex::new(Vec::new()));
        let makers: Vec<_> = (0..3)
            .map(|branch| {
                let (dir, made) = (dir.clone(), made.clone());
                thread::spawn(move || {
                    let guard = loop {
                        if let Some(guard) = dir.make(c"film") {
                            break guard;
                        }
                        thread::yield_now();
                    };
                    let is_there = !made.lock().is_empty();
                    thread::yield_now();
                    if !is_there {
                        made.lock().push(branch);
                    }
                    drop(guard);
                })
            })
            .collect();
        makers.into_iter().for_each(|maker| maker.join().unwrap());
        assert_eq!(made.lock().len(), 1, "a branch each has it");
        assert!(dir.make(c"film").is_some(), "nobody makes it any more");
    });
}
