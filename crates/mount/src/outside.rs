//! The kernel's caches and out-of-band changes of branches: `out-of-band`.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use fsstack_engine::Union;
use fsstack_fuse::notify::Kernel;
use fsstack_fuse::{Mounted, Timeouts};

use crate::settings::{OutOfBand, Settings};

/// Timeout of names while notices come for every change; a change that crosses with a lookup is noticed twice.
pub(crate) const WATCHED: Duration = Duration::from_secs(60);
/// Practically for ever.
pub(crate) const NEVER_CHANGED: Duration = Duration::from_secs(3600);

/// Timeouts of the kernel's caches.
pub(crate) fn timeouts(settings: &Settings) -> Timeouts {
    Timeouts {
        entry: settings.entry_timeout,
        attr: settings.attr_timeout,
        negative: settings.negative_timeout,
        watched: settings.watched_timeouts,
    }
}

/// How long the engine believes that it knows all copies of a directory: as long as the kernel may believe names, there
/// and missing, and a second at least.
pub(crate) fn recheck(settings: &Settings) -> Duration {
    match settings.out_of_band {
        OutOfBand::Never => NEVER_CHANGED,
        OutOfBand::Watch | OutOfBand::Timeout => {
            settings.entry_timeout.min(settings.negative_timeout).max(Duration::from_secs(1))
        }
    }
}

/// From now on the kernel gets a notice of every change.
pub(crate) fn keep_informed(settings: &Settings, union: &Arc<Union>, mounted: &Mounted) -> io::Result<()> {
    let kernel = Arc::new(Kernel::behind(mounted.device())?);
    union.set_invalidator(kernel.clone());
    if settings.out_of_band != OutOfBand::Watch {
        return Ok(());
    }
    match union.watch(kernel) {
        Ok(watch) => {
            let union = union.clone();
            let thread = std::thread::Builder::new().name("watch".into());
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
