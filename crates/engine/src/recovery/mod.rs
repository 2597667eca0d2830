//! Records of what is under way, in the hidden folders of the branches, and the mount that finds them.

pub(crate) mod batch;
pub(crate) mod blank;
pub(crate) mod copies;
pub(crate) mod decisions;
pub(crate) mod give_up;
pub(crate) mod group;
pub(crate) mod hidden_folder;
pub(crate) mod intent;
pub(crate) mod journal;
pub(crate) mod locked_dir;
pub(crate) mod record;
pub(crate) mod record_kind;
pub(crate) mod recover;
pub(crate) mod root_attribute;
pub(crate) mod settle;
pub(crate) mod told;
pub(crate) mod unsynced_removals;
