//! Slow calls, and totals of calls by caller.

use fsstack_sync::time::{Duration, UNIX_EPOCH};

use super::Served;
use crate::log::utc;
use fsstack_control::api::{
    CallerCalls, CallsByCaller, ProfileRequest, SlowCallShown, SlowCalls, SlowRequest, SlowThreshold,
};
use fsstack_fuse::{CallerKey, CallerRow, LONGEST_PATH, SlowCall};
use fsstack_pool::{BranchIx, Ino, Printable};
use std::collections::{HashMap, HashSet};

/// Time for which totals of calls are kept after somebody has asked for them.
const TOTALS_LEASE: Duration = Duration::from_secs(10);

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl Served {
    pub(super) fn tell_slow_calls(&self, request: &SlowRequest) -> SlowCalls {
        let watch = self.adapter.calls();
        let logged = match request.threshold {
            Some(SlowThreshold::Off) => watch.end_slow(request.after),
            threshold => {
                if let Some(SlowThreshold::Micros(micros)) = threshold {
                    watch.set_slow(Duration::from_micros(micros));
                }
                watch.slow_calls(request.after)
            }
        };
        SlowCalls {
            threshold: watch.slow().map_or(SlowThreshold::Off, |slow| SlowThreshold::Micros(micros(slow))),
            calls: logged.calls.iter().map(|call| self.tell_slow_call(call)).collect(),
            lost: logged.lost,
            last: Some(logged.last),
        }
    }

    fn tell_slow_call(&self, call: &SlowCall) -> SlowCallShown {
        let since = call.ended.duration_since(UNIX_EPOCH).unwrap_or_default();
        let pool = self.union.pool();
        let branch = |ix: BranchIx| Some(Printable::path(&pool.live(ix)?.path).to_string());
        SlowCallShown {
            number: call.number,
            ended: format!("{}.{:03}Z", utc(since.as_secs()).trim_end_matches('Z'), since.subsec_millis()),
            micros: micros(call.took),
            operation: call.operation.clone(),
            path: call.path.as_ref().map(|path| format!("/{}", Printable(path))),
            branch: call.branch.and_then(branch),
            error: call.error.map(|errno| errno.to_string()),
            pid: call.pid,
            uid: call.uid,
            program: Printable(&call.program).to_string(),
        }
    }

    pub(super) fn tell_profile(&self, request: &ProfileRequest) -> CallsByCaller {
        let totals = self.adapter.calls().profile(TOTALS_LEASE, request.directories);
        // Several callers may work in a directory.
        let dirs: HashSet<Ino> = totals.rows.keys().filter_map(|key| key.dir).collect();
        let shown =
            |dir: Ino| self.union.known_path(dir, LONGEST_PATH).map(|path| format!("/{}", Printable(&path)));
        let paths: HashMap<Ino, Option<String>> = dirs.into_iter().map(|dir| (dir, shown(dir))).collect();
        let caller = |(key, row): (&CallerKey, &CallerRow)| CallerCalls {
            pid: row.pid,
            uid: key.uid,
            program: Printable(&row.program).to_string(),
            directory: key.dir.and_then(|dir| paths.get(&dir)?.clone()),
            directory_number: key.dir.map(|dir| dir.0),
            calls: row.totals.calls,
            errors: row.totals.errors,
            micros: micros(row.totals.took),
            read_bytes: row.totals.read,
            written_bytes: row.totals.written,
            row: row.number,
        };
        CallsByCaller {
            micros: micros(totals.since.elapsed()),
            callers: totals.rows.iter().map(caller).collect(),
        }
    }
}
