//! What the kernel may believe of branches that others change too: `out-of-band`.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use fsstack_engine::Union;
use fsstack_fuse::notify::Kernel;
use fsstack_fuse::{Mounted, Timeouts};

use crate::settings::{OutOfBand, Settings};

/// How long names are believed whose every change is told of; a change that crosses with a lookup is told of twice.
pub(crate) const WATCHED: Duration = Duration::from_secs(60);
/// As good as for ever.
pub(crate) const NEVER_CHANGED: Duration = Duration::from_secs(3600);

/// How long the kernel may believe what it is told.
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

/// From now on the kernel is told when something is not as it was.
pub(crate) fn keep_told(settings: &Settings, union: &Arc<Union>, mounted: &Mounted) -> io::Result<()> {
    let kernel = Arc::new(Kernel::behind(mounted.device())?);
    union.set_doubt(kernel.clone());
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
