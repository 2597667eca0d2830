//! The branch on which a directory's files are gathered.

use fsstack_pool::BranchIx;

use super::room::Room;

/// The branch of these that has most of the files already, among those with room for the rest: `files` are their branches and bytes.
/// None: none has room.
pub fn target(files: impl Iterator<Item = (BranchIx, u64)> + Clone, rooms: &[Room]) -> Option<BranchIx> {
    let all: u64 = files.clone().map(|(_, bytes)| bytes).sum();
    let on =
        |at: BranchIx| files.clone().filter(|(from, _)| *from == at).map(|(_, bytes)| bytes).sum::<u64>();
    let fits = rooms.iter().filter(|room| room.bytes >= all - on(room.branch));
    fits.map(|room| room.branch).max_by_key(|at| on(*at))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rooms(bytes: &[u64]) -> Vec<Room> {
        let room = |(at, bytes): (usize, &u64)| Room {
            branch: BranchIx::at(at).unwrap(),
            dev: at as u64,
            bytes: *bytes,
            inodes: u64::MAX,
        };
        bytes.iter().enumerate().map(room).collect()
    }

    proptest! {
        #[test]
        fn the_branch_that_takes_them_has_room_and_none_with_room_would_save_more(
            files in prop::collection::vec((0_u16..4, 0_u64..100), 0..40),
            room in prop::collection::vec(0_u64..3000, 0..4),
        ) {
            let files: Vec<(BranchIx, u64)> = files.into_iter().map(|(at, bytes)| (BranchIx(at), bytes)).collect();
            let rooms = rooms(&room);
            let moved = |at: BranchIx| files.iter().filter(|(from, _)| *from != at).map(|(_, bytes)| bytes).sum::<u64>();
            let fits = |room: &&Room| moved(room.branch) <= room.bytes;
            match target(files.iter().copied(), &rooms) {
                Some(to) => {
                    let of = rooms.iter().find(|room| room.branch == to).unwrap();
                    prop_assert!(fits(&of));
                    prop_assert!(rooms.iter().filter(fits).all(|room| moved(to) <= moved(room.branch)));
                }
                None => prop_assert!(!rooms.iter().any(|room| fits(&room))),
            }
        }
    }
}
