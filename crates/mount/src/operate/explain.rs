//! Why something is where it is, and where something new would go.

use super::Served;
use fsstack_control::Refusal;
use fsstack_control::api::{Explained, PlacementExplained};

impl Served {
    pub(super) fn explain_path(&self, _: &[u8]) -> Result<Explained, Refusal> {
        Err(Refusal::usage("explain: not there yet"))
    }

    pub(super) fn explain_placement(&self, _: &[u8], _: u64) -> Result<PlacementExplained, Refusal> {
        Err(Refusal::usage("explain: not there yet"))
    }
}
