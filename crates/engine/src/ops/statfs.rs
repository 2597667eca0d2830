//! The pool's size.

use fsstack_branch::error::{OpError, Result};
use fsstack_pool::BranchMode;

use crate::answer::Statfs;
use crate::settings::StatfsMode;
use crate::union::Union;

impl Union {
    /// The sum over the distinct file systems of the branches that answer: two directories of one disk count once.
    ///
    /// # Errors
    /// What the last branch answered, if none can be asked.
    pub fn statfs(&self) -> Result<Statfs> {
        let pool = self.tree.pool.load();
        let mut seen: Vec<u64> = Vec::new();
        let mut sum = Statfs { name_max: 255, ..Statfs::default() };
        let mut last = None;
        let mut parts = Vec::new();
        for branch in &pool.branches {
            let (fs, space) = match (branch.fs_space(), branch.space()) {
                (Ok(fs), Ok(space)) => (fs, space),
                (Err(error), _) | (_, Err(error)) => {
                    last = Some(error);
                    continue;
                }
            };
            sum.block_size = sum.block_size.max(u32::try_from(fs.frag_size).unwrap_or(4096));
            sum.name_max = sum.name_max.min(u32::try_from(fs.name_max).unwrap_or(255));
            let reserve = match pool.settings.statfs {
                StatfsMode::AsPlaced => branch.floor().unwrap_or(pool.settings.floor).bytes_of(space.total),
                StatfsMode::All | StatfsMode::IgnoreNc | StatfsMode::IgnoreRo => 0,
            };
            let usable = match (pool.settings.statfs, branch.mode()) {
                // Nobody can use it, whatever the branch's mode.
                _ if fs.read_only => 0,
                (StatfsMode::All, _) | (_, BranchMode::ReadWrite) => space.available.saturating_sub(reserve),
                (StatfsMode::IgnoreNc, BranchMode::ReadOnly) => space.available,
                (StatfsMode::IgnoreNc | StatfsMode::IgnoreRo | StatfsMode::AsPlaced, _) => 0,
            };
            match seen.iter().position(|dev| *dev == branch.dev()) {
                None => {
                    seen.push(branch.dev());
                    parts.push((space, usable));
                }
                // What one of its branches may not use, another may.
                Some(known) => parts[known].1 = usable.max(parts[known].1),
            }
        }
        if parts.is_empty() {
            return Err(last.unwrap_or(OpError::UNSURE));
        }
        let unit = u64::from(sum.block_size.max(512));
        sum.block_size = u32::try_from(unit).unwrap_or(4096);
        for (space, usable) in parts {
            sum.blocks = sum.blocks.saturating_add(space.total / unit);
            sum.free = sum.free.saturating_add(space.free / unit);
            sum.available = sum.available.saturating_add(usable / unit);
            sum.files = sum.files.saturating_add(space.inodes_total);
            sum.files_free = sum.files_free.saturating_add(space.inodes_free);
        }
        Ok(sum)
    }
}
