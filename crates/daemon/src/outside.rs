//! Cache timeouts and notices for out-of-band changes of branches (`out-of-band`).

use std::io;
use std::sync::Arc;
use std::time::Duration;

use fsstack_engine::Union;
use fsstack_fuse::notify::Kernel;
use fsstack_fuse::{Mounted, Timeouts};
use fsstack_pool::settings::OutOfBand;

use crate::settings::Options;

/// Timeout of names while every change is watched. A change concurrent with a lookup is notified twice.
pub(crate) const WATCHED_NAMES_TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout of names where nothing changes out of band: practically unlimited.
pub(crate) const UNCHANGED_NAMES_TIMEOUT: Duration = Duration::from_secs(3600);

/// The least time that the engine trusts its list of a directory's copies.
const SHORTEST_RECHECK: Duration = Duration::from_secs(1);

/// Timeouts of the kernel's caches.
pub(crate) fn timeouts(options: &Options) -> Timeouts {
    Timeouts {
        entry: options.entry_timeout,
        attr: options.attr_timeout,
        negative: options.negative_timeout,
        watched: options.watched_timeouts,
    }
}

/// How long the engine trusts its list of a directory's copies: as long as the kernel caches existing and missing
/// names, at least [`SHORTEST_RECHECK`].
pub(crate) fn recheck(options: &Options) -> Duration {
    match options.out_of_band {
        OutOfBand::Never => UNCHANGED_NAMES_TIMEOUT,
        OutOfBand::Watch | OutOfBand::Timeout => {
            options.entry_timeout.min(options.negative_timeout).max(SHORTEST_RECHECK)
        }
    }
}

/// Starts sending the kernel a notice for every change.
pub(crate) fn keep_informed(options: &Options, union: &Arc<Union>, mounted: &Mounted) -> io::Result<()> {
    let kernel = Arc::new(Kernel::behind(mounted.device(), mounted.dev())?);
    union.set_invalidator(kernel.clone());
    if options.out_of_band != OutOfBand::Watch {
        return Ok(());
    }
    match union.watch(kernel) {
        Ok(watch) => {
            let union = union.clone();
            let thread = fsstack_sync::thread::Builder::new().name("watch".into());
            thread.spawn(move || {
                if let Err(error) = watch.serve(&union) {
                    watch.give_up();
                    tracing::error!(%error, "out-of-band=watch failed; out-of-band changes are seen after the timeouts only");
                }
            })?;
        }
        Err(error) => {
            tracing::warn!(
                "out-of-band=watch: {error}; out-of-band changes are seen after the timeouts only"
            );
        }
    }
    Ok(())
}
