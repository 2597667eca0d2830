//! The index's file in the pool's state directory: opened, or made.
//!
//! Only a damaged file is replaced, and it is kept beside the new one for diagnosis. A file that cannot be opened now
//! (another daemon has it, descriptors are short, the disk fails, a later version wrote it) stays: the pool does without
//! until it is mounted again.

use std::path::{Path, PathBuf};

use fsstack_sync::time::{Duration, Instant};

use super::store::{DbResult, Store, StoreError};

/// The database in the pool's folder.
const FILE: &str = "index.redb";
/// How long to wait for a daemon that is just ending and still has the file open.
const IN_USE_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause between two tries to open an index that is in use.
const IN_USE_PAUSE: Duration = Duration::from_millis(20);

/// Opens the index in `folder`. Returns the file's path, None if no file may be made there, and the index, None if
/// there is none yet. If the pool `exports`, the index counts as not closed cleanly from now on.
pub(super) fn open(folder: &Path, exports: bool) -> (Option<PathBuf>, Option<Store>) {
    let file = folder.join(FILE);
    let opened = open_unless_in_use(&file).and_then(|store| {
        if let Some(store) = store.as_ref().filter(|_| exports) {
            store.set_closed(false)?;
        }
        Ok(store)
    });
    match opened {
        Ok(store) => (Some(file), store),
        Err(error) if error.is_damage() => {
            tracing::error!(%error, file = %file.display(), "index damaged; rebuilding it from the marks on the branches");
            (Some(file), None)
        }
        Err(error) => {
            tracing::error!(%error, file = %file.display(), "index cannot be opened; moved files are looked up one by one");
            (None, None)
        }
    }
}

/// Opens the index once no other daemon has it open. None: there is no file.
fn open_unless_in_use(file: &Path) -> DbResult<Option<Store>> {
    let began = Instant::now();
    loop {
        match Store::open(file) {
            Err(error) if error.is_in_use() && began.elapsed() < IN_USE_TIMEOUT => {
                fsstack_sync::thread::sleep(IN_USE_PAUSE);
            }
            opened => return opened,
        }
    }
}

/// Makes a new index. A damaged file in its place is kept beside it.
pub(super) fn make(file: &Path, id: [u8; 16]) -> DbResult<Store> {
    fsstack_sys::state::make_room(file).map_err(|error| StoreError::from(redb::StorageError::Io(error)))?;
    Store::make(Some(file), id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_damaged_file_is_replaced_and_it_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(FILE);
        let damages: [&[u8]; 3] = [b"", b"garbage", &[0; 5000]];
        for damage in damages {
            std::fs::write(&file, damage).unwrap();
            assert!(matches!(open(dir.path(), true), (Some(at), None) if at == file), "{damage:?}");
            drop(make(&file, [7; 16]).unwrap());
            assert_eq!(std::fs::read(dir.path().join("index.redb.bad")).unwrap(), damage);
        }
        // Cut short.
        let whole = std::fs::read(&file).unwrap();
        std::fs::write(&file, &whole[..whole.len() / 2]).unwrap();
        assert!(matches!(open(dir.path(), true), (Some(_), None)));
        std::fs::write(&file, &whole).unwrap();
        assert!(matches!(open(dir.path(), true), (Some(_), Some(_))));
        // A path that is no file is left alone: it may be one at the next mount.
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir(&file).unwrap();
        assert!(matches!(open(dir.path(), true), (None, None)));
        assert!(file.exists());
    }
}
