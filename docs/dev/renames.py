#!/usr/bin/env python3
"""Renames of issue 19 (the field's words) that are still to be made, a round a crate: engine, mount, tools. Delete this file with the last.

  docs/dev/renames.py --list       the rounds
  docs/dev/renames.py ROUND...     makes the renames of these rounds in this tree: file moves, identifiers, paths in docs. Does not commit.

A round made twice changes nothing. When a round has landed as commit C, work that has not landed is carried over so:
commit it; git rebase C^; run the round; git add -A && git reset --soft C && git commit; git rebase main.
Engine: compiled with all its users, its unit tests passed, on main of 23 November 14:39 with the round "fuse" that has landed;
tidy then found one line that had become too long (docs/dev/threads.md:36). Mount and tools: compiled, not tested.
"""
import os, re, subprocess, sys

ROUNDS = {}
E_ = 'crates/engine/'
S = E_ + 'src/'
ALL = [E_, 'crates/fuse/', 'crates/mount/', 'tests/', 'benches/']
def mods(files, pairs):
    """`mod old;`, `old::` and `{old, ..}` in use lines."""
    out = []
    for old, new in pairs:
        out.append((files, r'\bmod %s;' % old, 'mod %s;' % new))
        out.append((files, r'(?<![\w.])%s::(?=[A-Za-z{*])' % old, '%s::' % new))
        out.append((files, r'(\buse [^;\n]*::\{(?:[^;{}]*, )?)%s(?=[,}])' % old, r'\1%s' % new))
        out.append((files, r'(\buse [^;\n{]*::)%s;' % old, r'\1%s;' % new))
        out.append((files, r'(\bpub use )%s::' % old, r'\1%s::' % new))
    return out
ENGINE_MODS = [
    ('crowd', 'inflight_limit'), ('keeper', 'monitor'), ('examine', 'probe'), ('parts', 'subvolumes'), ('spare', 'preopened'),
    ('stand_in', 'reply_takeover'), ('home', 'mount_root'), ('terms', 'admin_state'), ('tally', 'metrics'), ('scouts', 'parallel_lookup'),
    ('shape', 'tree_lock'), ('twin', 'clone_metadata'), ('chattr', 'inode_flags'), ('owed', 'write_back_errors'), ('quiet', 'noatime'),
    ('choice', 'decision'), ('making', 'create_guard'), ('claims', 'copy_guards'), ('regain', 'branch_recovery'), ('revive', 'lookup_dot'),
    ('way', 'dir_path'), ('reach', 'by_number'),
]
ROUNDS['engine'] = dict(
    moves=[(S + a, S + b) for a, b in [
        ('health/inflight.rs', 'health/permits.rs'), ('health/crowd.rs', 'health/inflight_limit.rs'), ('health/keeper.rs', 'health/monitor.rs'),
        ('health/examine.rs', 'health/probe.rs'), ('health/parts.rs', 'health/subvolumes.rs'), ('health/spare.rs', 'health/preopened.rs'),
        ('health/stand_in.rs', 'health/reply_takeover.rs'), ('home.rs', 'mount_root.rs'), ('terms.rs', 'admin_state.rs'), ('tally.rs', 'metrics.rs'),
        ('scouts.rs', 'parallel_lookup.rs'), ('shape.rs', 'tree_lock.rs'), ('twin.rs', 'clone_metadata.rs'), ('chattr.rs', 'inode_flags.rs'),
        ('open/owed.rs', 'open/write_back_errors.rs'), ('open/quiet.rs', 'open/noatime.rs'), ('open/choice.rs', 'open/decision.rs'),
        ('open/place.rs', 'open/branch_file.rs'), ('open/unsynced.rs', 'open/dirty.rs'), ('unsynced.rs', 'unsynced_dirs.rs'),
        ('inode/making.rs', 'inode/create_guard.rs'), ('inode/claims.rs', 'inode/copy_guards.rs'), ('inode/locations.rs', 'inode/location_cache.rs'),
        ('regain.rs', 'branch_recovery.rs'), ('ops/revive.rs', 'ops/lookup_dot.rs'), ('index/way.rs', 'index/dir_path.rs'), ('reach.rs', 'by_number.rs'),
    ]] + [('tests/engine/revive.rs', 'tests/engine/lookup_dot.rs'), ('tests/engine/tally.rs', 'tests/engine/metrics.rs')],
    texts=mods([E_], ENGINE_MODS)
        + mods([S + 'open/'], [('place', 'branch_file'), ('unsynced', 'dirty')])
        + mods([S + 'health/'], [('inflight', 'permits')])
        + mods([S + 'inode/'], [('locations', 'location_cache')])
        + [([S], r'crate::unsynced::', 'crate::unsynced_dirs::'), ([S + 'lib.rs'], r'\bmod unsynced;', 'mod unsynced_dirs;'),
           (ALL, r'\binode::locations::', 'inode::location_cache::'),
           ([S], r'\bsuper::inflight::', 'super::permits::')]
        + [(ALL, r'\b(fsstack_engine::(?:\w+::)*)%s\b(?=::|;)' % a, r'\1%s' % b) for a, b in ENGINE_MODS]
        + [(['crates/fuse/', 'tests/'], r'\bstand_in::', 'reply_takeover::'), (['tests/engine/main.rs'], r'\bmod revive;', 'mod lookup_dot;'),
           (['tests/engine/main.rs'], r'\bmod tally;', 'mod metrics;'),
           (['docs/'], r'engine::revive::', 'engine::lookup_dot::'), (['docs/'], r'engine::tally::', 'engine::metrics::'),
           ] + [(['docs/dev/tested.md'], r'`%s::' % a, '`%s::' % b) for a, b in ENGINE_MODS if a != 'home'] + [
           # one name, two meanings: by the text around it
           ([S + 'index/'], r'\bmuster\(', 'admit('),
           # a file stays under 500 lines
           ([S + 'relocate.rs'], r"//! Where the target goes out of reach in the middle[^\n]*\n//! removed when that is back[^\n]*\n//!\n", "//! If the target goes out of reach, the file stays, and no other target is tried until this one is cleaned (`intent.rs`).\n"),
           ([S + 'relocate.rs'], r"(//! A branch that refused a file is not tried again[^\n]*\n)//!\n", r"\1"),
           ([S + 'relocate.rs'], r"//! Not moved: a file with several links \([^\n]*\n//! by passthrough, or may have[^\n]*\n//! copy: none is made[^\n]*\n", "//! Not moved: a file with several links, and one that the kernel reads, writes or may have mapped by passthrough. Mappings are\n//! looked for before the copy: none is made later, as no open of the file goes by passthrough then.\n"),
           ([S + 'relocate.rs'], r"/// What the old copy lost on its way to the disk, and nobody was told yet, is owed[^\n]*\n/// may lack it, and its branch knows nothing of it\.\n", "/// Reports errors of the old copy's write-back to all handles: the new copy may lack what was lost, unknown to its branch.\n"),
           ([S + 'relocate.rs'], r"( *)return Some\(if (matches!\(file\.tied_to\(\), Some\(Route::Beside\(_\)\)\)) \{ MAPPED", r"\1let beside = \2;\n\1return Some(if beside { MAPPED"),
           ([S + 'relocate.rs'], r"( *)if \(now\.branch, now\.epoch\) != \(was\.branch, was\.epoch\) \|\| why_not", r"\1let is_other = (now.branch, now.epoch) != (was.branch, was.epoch);\n\1if is_other || why_not"),
           ([S + 'rights.rs'], r'use crate::clashes::Told;', 'use crate::clashes::ClashReport;'),
           ([S + 'rights.rs'], r'^    Told\(Rights', '    Reported(Rights'),
           ([S + 'live.rs', S + 'union.rs'], r'\bindex\.muster\(', 'index.admit('),
           ([S], r'\b(inode|dir|parent)\.doubt\(\)', r'\1.invalidate()'),
           ([S + 'removed.rs'], r'searches\.alone\(', 'searches.exclusively('),
           ([S + 'open/branch_file.rs', S + 'open/dirty.rs'], r'\b(struct |: |-> |let |place::|branch_file::|Option<|<Branch>, )Gone\b', r'\1ClosedFd'),
           ([S + 'open/branch_file.rs'], r'\bGone \{', 'ClosedFd {'),
           ],
    words=[
        # names that are unique in the engine, and their users
        (ALL, {'StandIn': 'ReplyTakeover', 'stand_in': 'reply_takeover', 'Doubt': 'Invalidator', 'set_doubt': 'set_invalidator', 'doubt_all': 'invalidate_all',
               'BranchTally': 'BranchMetricsSnapshot', 'CallTally': 'CallSnapshot', 'PoolTally': 'PoolMetricsSnapshot',
               'Untouched': 'NoatimeScope', 'set_untouched': 'set_noatime_scope', 'OpenWays': 'OpenByWritePath', 'OtherWay': 'OtherWritePath',
               'open_ways': 'open_by_write_path', 'Locations': 'LocationCache', 'Route::Beside': 'Route::DirectBeside', 'stand_in::Crew': 'reply_takeover::WorkerThread', 'reply_takeover::Crew': 'reply_takeover::WorkerThread'}),
        ([E_], {
            'Crowd': 'InflightLimit', 'crowd': 'inflight_limit', 'Inside': 'CallPermit', 'Stay': 'CallKind', 'Stay::Brief': 'CallKind::Short', 'Stay::Spare': 'CallKind::Optional', 'stay': 'kind',
            'Crew': 'WorkerThread', 'Leaves': 'ClearResponder', 'Back': 'StepBack',
            'Holder': 'ThreadInCalls',
            'DESK': 'RESPONDER', 'CREW': 'WORKER', 'crew': 'worker',
            'PEACE': 'PROBE_COOLDOWN', 'peace': 'cools_down', 'SHORT': 'OPTIONAL_CALL_WAIT', 'DOUBTED': 'SUSPECT', 'LACKING': 'LACKING_SUBVOLUME',
            'keeper': 'monitor', 'wake_keeper': 'wake_monitor', 'examine': 'probe', 'examined': 'probed', 'examining': 'probing', 'examinations': 'probes',
            'is_being_examined': 'is_being_probed', 'examine_when_due': 'probe_when_due',
            'Home': 'MountRoot', 'home': 'mount_root', 'move_home': 'replace_root', 'epoch': 'mount_generation', 'check_epoch': 'check_mount_generation',
            'Terms': 'AdminState', 'terms': 'admin', 'Tenant': 'OpenFileRef', 'move_in': 'acquire', 'Awaited': 'AwaitedFile', 'Limits': 'SpaceLimits',
            'Tally': 'BranchMetrics', 'tally': 'metrics', 'Sum': 'BranchCounter', 'Visit': 'TimedVisit', 'check_parts': 'check_subvolumes', 'Was': 'FdOrigin', 'Mounts::Stay': 'Mounts::Stay', 'On::Name': 'On::Name', 'Access::Name': 'Access::Name',
            'untouched': 'noatime_scope', 'hush': 'set_noatime', 'hush_again': 'set_noatime_again', 'hushed': 'is_noatime', 'loud': 'has_atime_reader', 'quietly': 'with_descriptor',
            'QUIET': 'NOATIME', 'Quiet': 'NoatimeState',
            'Owed': 'WriteBackErrors', 'owed': 'write_back_errors', 'Asks': 'Reporter', 'To': 'ReportTo', 'Asking': 'SyncUnderWay', 'owes': 'unreported',
            'may_owe_an_error': 'may_have_unreported_error',
            'Tie': 'IoMode', 'tie': 'io_mode', 'TIE': 'IO_MODE', 'untie': 'leave_io_mode', 'tied_to': 'route', 'tied': 'decided', 'Beside': 'DirectBeside',
            'But': 'StackedReason', 'Choice': 'PathDecision', 'choice': 'decision',
            'Scouts': 'ParallelLookup', 'scouts': 'parallel_lookup', 'Camp': 'LookupThreads', 'camp': 'shared', 'muster': 'start_threads', 'Sent': 'AskedAhead',
            'Shape': 'TreeLock', 'shape': 'tree_lock', '_shape': '_tree_lock', 'skeleton_in_shape': 'skeleton_under_tree_lock',
            'exchange_names_in_shape': 'exchange_names_under_tree_lock', 'SHAPE_PATIENCE': 'TREE_LOCK_TIMEOUT', 'patiently': 'unless_stuck', 'ask_patiently': 'ask_long',
            'patience': 'timeout',
            'Making': 'CreateGuard', '_making': '_create_guard', '_making_too': '_create_guard_too', 'make_alone': 'create_guard', 'Goes': 'RmdirGuard', 'Grows': 'CopyGuard',
            'goes': 'rmdir_guard', 'grows': 'copy_guard', '_grows': '_copy_guard', 'Claims': 'CopyGuards', 'claims': 'copy_guards',
            'Going': 'NameRemoval', 'file_that_goes': 'removed_file', 'copies_that_go': 'removed_copies',
            'doubt_name': 'invalidate_name', 'doubt_copy_on': 'invalidate_copy_on', 'doubted': 'invalidated', 'Watch': 'BranchWatch',
            'ghost': 'unlinked_fd', 'ghosts': 'unlinked_inodes', 'had_ghost': 'had_unlinked_fd', 'outlive': 'keep_unlinked',
            'reach': 'resolve_number', 'reach_at': 'resolve_number_at', 'Reached': 'ResolvedNumber', 'Above': 'ParentOf', 'rejoin': 'reconnect', 'rejoined': 'reconnected', 'regain': 'recover',
            'revive_file': 'enter_file', 'revive_dir': 'enter_dir', 'Connected': 'ConnectedDir',
            'Traits': 'InodeFlags', 'traits': 'inode_flags', 'copy_traits': 'copy_inode_flags', 'dress': 'clone_metadata', 'dress_like': 'clone_dir_metadata', 'make_apart': 'make_in_folder',
            'told': 'reported', 'was_told': 'was_reported', 'forget_told': 'forget_reported', 'told_before': 'reported_before', 'last_told': 'last_reported',
            'Pace': 'RateLimit', 'pace': 'rate_limit', 'seen_as': 'note_name', 'lookup_where_seen': 'lookup_at_cached_location', 'locations': 'location_cache',
            'MadeUp': 'PreopenedFile', 'Camp': 'LookupThreads', 'in_shape': 'under_tree_lock',
            'Leave': 'MoveRequest', 'Alone': 'ExclusiveFile', 'Placed': 'BranchFile', 'hold_alone': 'hold_exclusively', 'wait_alone': 'wait_for_exclusive',
            'exchange_in_turn': 'exchange_step_by_step', 'move_in_turn': 'move_queued', 'open_door': 'open_transport',
        }),
        # the same word for several things
        ([S + 'metrics.rs', S + 'union.rs', S + 'status.rs', S + 'ops/', S + 'resolve.rs', S + 'open/'], {'Events': 'PoolMetrics', 'Event': 'PoolCounter', 'events': 'pool_metrics'}),
        ([S + 'health/monitor.rs', S + 'health/mod.rs'], {'desk': 'monitor_state', 'Desk': 'MonitorState'}),
        ([S + 'health/inflight_limit.rs', S + 'health/reply_takeover.rs'], {'Desk': 'Responder', 'desk': 'responder', 'turn': 'request_id', 'door': 'transport'}),
        ([S + 'health/monitor.rs'], {'EVERY': 'PROBE_INTERVAL', 'PATIENCE': 'DEFAULT_PROBE_TIMEOUT', 'MOST': 'MOST_HUNG_PROBES', 'Verdict': 'ProbeResult', 'verdict': 'result', 'place': 'mounted', 'quiet': 'idle', 'Look': 'InflightLook'}),
        ([S + 'health/probe.rs'], {'Verdict': 'ProbeResult', 'Place': 'MountedRoot', 'place': 'mounted', 'Parts': 'Subvolumes', 'parts': 'subvolumes', 'Why': 'ProbeFailure'}),
        ([S + 'health/permits.rs', S + 'health/inflight_limit.rs'], {'Brief': 'Short', 'Spare': 'Optional', 'Verdict': 'QueueAnswer', 'verdict': 'answer', 'refuse_spare': 'refuse_optional', 'take_place': 'take_permit'}),
        ([S + 'health/permits.rs'], {'Told': 'Answers', 'told': 'answers', 'Generation': 'MountGeneration'} and {'Told': 'Answers', 'told': 'answers'}),
        ([S + 'health/inflight_limit.rs'], {'Caller': 'InflightCaller', 'Inner': 'InflightState', 'Look': 'InflightLook', 'STALL': 'STALLED_AFTER', 'LOOKS': 'LOOK_PAUSES', 'MOST': 'MOST_INFLIGHT'}),
        ([S + 'health/', S + 'mount_root.rs', S + 'branch.rs', S + 'place.rs', S + 'metrics.rs'], {'State': 'BranchState', 'Parts': 'Subvolumes', 'parts': 'subvolumes', 'check_parts': 'check_subvolumes', 'told_by': 'sources'}),
        ([S + 'health/mod.rs', S + 'health/monitor.rs', S + 'health/mounts.rs', S + 'branch.rs'], {'doubt': 'suspect'}),
        ([S + 'health/preopened.rs'], {'Opened': 'PreopenedFd', 'Place': 'PreopenedPath', 'place': 'path_below', 'FRESH': 'FRESH_FOR', 'told': 'text'}),
        ([S + 'health/free.rs'], {'PATIENCE': 'ANSWER_TIMEOUT', 'told': 'answer'}),
        ([S + 'health/closers.rs'], {'Job': 'CloseJob', 'Lane': 'CloseQueue'}),
        ([S + 'mount_root.rs'], {'Place': 'MountedRoot', 'place': 'mounted'}),
        ([S + 'metrics.rs', S + 'status.rs'], {'told': 'snapshot'}),
        (['tests/engine/metrics.rs', 'tests/faults/', 'tests/engine/', 'tests/model/', 'crates/mount/src/operate/'], {'tally': 'metrics'}),
        ([S + 'open/noatime.rs'], {'State': 'NoatimeDescriptors', 'Apart': 'NoatimeDescriptor', 'apart': 'noatime_fd'}),
        ([S + 'open/noatime.rs', S + 'open/mod.rs', S + 'ops/open.rs', S + 'ops/readdir.rs', S + 'ops/data.rs', S + 'open/listing.rs'], {'quiet': 'noatime'}),
        ([S + 'open/write_back_errors.rs'], {'State': 'ReportedErrors', 'turn': 'round'}),
        ([S + 'open/decision.rs', S + 'open/route.rs'], {'but': 'reason'}),
        ([S + 'parallel_lookup.rs'], {'State': 'LookupQueue', 'Job': 'LookupJob', 'told': 'answer', 'Answers': 'BranchAnswers'}),
        ([S + 'tree_lock.rs', S + 'skeleton.rs'], {'Held': 'TreeLockGuard'}),
        ([S + 'tree_lock.rs'], {'TRY': 'LOCK_ATTEMPT', 'PATIENCE': 'STUCK_HOLDER_TIMEOUT', 'COURTESY': 'SHARED_FOR', 'CLAIM': 'CLAIM_VALID_FOR', 'Claim': 'TreeLockClaim', 'HELD': 'HELD_HERE',
            'held_by': 'guard', 'had': 'had'}),
        ([S + 'inode/'], {'making': 'creating', 'Changes': 'AttributeGuard', 'State': 'InodeState', 'Place': 'Location', 'place': 'location', 'doubt': 'invalidate', 'FilePlace': 'FileLocation', 'DirPlace': 'DirCopies', 'going': 'removing'}),
        ([S + 'ops/', S + 'resolve.rs', S + 'relocate.rs', S + 'replace.rs', S + 'exchange.rs', S + 'names.rs', S + 'reserve.rs', S + 'skeleton.rs'], {'making': 'create_guard'}),
        ([S + 'ops/setattr.rs', S + 'rights.rs'], {'Changes': 'AttributeGuard', 'Listed': 'CopyBranches', 'Held': 'CopyFd'}),
        ([S + 'inode/', S + 'ops/', S + 'skeleton.rs', S + 'dir_number.rs', S + 'union.rs', S + 'open/followed.rs', S + 'moving.rs', S + 'relocate.rs'], {'Name': 'InodeName'}),
        ([S + 'removed.rs'], {'Place': 'IndexEntry', 'How': 'LastNameCheck', 'going': 'removal', 'PATIENCE': 'LINK_LOCK_TIMEOUT'}),
        ([S + 'ops/unlink.rs', S + 'ops/rmdir.rs', S + 'ops/rename.rs'], {'going': 'removal'}),
        ([S + 'watch.rs', S + 'union.rs', S + 'reserve.rs', S + 'ops/', S + 'live.rs'], {'doubt': 'invalidator'}),
        ([S + 'watch.rs'], {'Root': 'WatchedRoot', 'Known': 'KnownHandles', 'PATIENCE': 'QUIET_ROUNDS', 'PAUSE': 'READ_PAUSE', 'AGAIN': 'INVALIDATE_AGAIN_AFTER'}),
        ([S + 'inode_flags.rs', S + 'ops/ioctl.rs'], {'Marks': 'FlagsRequest'}),
        ([S + 'index/', S + 'branch.rs'], {'Marks': 'BranchMarks'}),
        ([S + 'index/'], {'Place': 'IndexEntry', 'Sort': 'EntryKind', 'Job': 'ScanJob', 'Way': 'DirPath', 'way': 'dir_path', 'patiently': 'open_unless_in_use', 'LEAVING': 'IN_USE_TIMEOUT',
            'TEND': 'TEND_INTERVAL', 'PAUSE': 'SCAN_PAUSE', 'Shared': 'SharedIndex', 'Content': 'IndexContent', 'Catch': 'FoundMarks', 'Looked': 'ScanResult', 'When': 'StoreWhen', 'told_by': 'members_on'}),
        ([S + 'identify.rs', S + 'by_number.rs', S + 'search.rs'], {'Place': 'IndexEntry'}),
        ([S + 'search.rs'], {'Way': 'DirPath', 'Moving': 'RenameGuard', 'PATIENCE': 'SEARCH_TIMEOUT', 'A_MOMENT': 'SEARCH_TURN_POLL', 'HALF_DONE': 'HALF_DONE_AFTER', 'Listed': 'FoundEntry', 'Whole': 'CompleteSearch', 'alone': 'exclusively'}),
        ([S + 'removed.rs', S + 'by_number.rs', S + 'handles.rs', S + 'identify.rs'], {'alone': 'exclusively'} and {}),
        ([S + 'entries.rs', S + 'index/scan.rs'], {'Listed': 'FoundEntry'}),
        ([S + 'explain.rs'], {'Way': 'WritePathReasons', 'Ranked': 'RankedCandidate'}),
        ([S + 'transfer.rs'], {'Way': 'Transfer', 'DOZE': 'LONGEST_SLEEP'}),
        ([S + 'movers.rs', S + 'relocate.rs'], {'Order': 'OrderedMove'}),
        ([S + 'movers.rs'], {'Lane': 'BranchMoves', 'State': 'MoversState', 'PATIENCE': 'QUEUED_MOVE_TIMEOUT'}),
        ([S + 'open/departure.rs'], {'State': 'DepartureState', 'Stage': 'DepartureStage'}),
        ([S + 'open/departure.rs', S + 'open/branch_file.rs', S + 'movers.rs', S + 'relocate.rs'], {'Outcome': 'DepartureOutcome'}),
        ([S + 'open/'], {'TRY': 'LOCK_ATTEMPT', 'LONGEST_TRY': 'LONGEST_LOCK_ATTEMPT', 'PATIENCE': 'OLD_MOUNT_TIMEOUT', 'place': 'position', 'places': 'positions'}),
        ([S + 'open/branch_file.rs', S + 'open/dirty.rs', S + 'open/mod.rs'], {'Unsynced': 'DirtyFlag'}),
        ([S + 'open/', S + 'relocate.rs'], {'Was': 'FdOrigin'}),
        ([S + 'open/followed.rs'], {'Names': 'FollowedNames', 'Moving': 'FollowedMove', 'One': 'FollowedName'}),
        ([S + 'relocate.rs'], {'New': 'NewCopy', 'Staged': 'StagedCopy'}),
        ([S + 'blank.rs'], {'Staged': 'StagedCopy'}),
        ([S + 'recover.rs', S + 'branch.rs'], {'Staged': 'StagedNames'}),
        ([S + 'recover.rs', S + 'record.rs'], {'Found': 'FoundRecord'}),
        ([S + 'recover.rs', S + 'record.rs', S + 'journal.rs', S + 'intent.rs'], {'Sort': 'RecordKind'}),
        ([S + 'settle.rs'], {'Place': 'PartAtBranch', 'Stage': 'PartStage', 'place': 'part_at', 'places': 'parts_at'}),
        ([S + 'settle.rs', S + 'journal.rs', S + 'names.rs', S + 'ops/rename.rs', S + 'exchange.rs', S + 'replace.rs'], {'Names': 'NameChange'}),
        ([S + 'rights.rs'], {'Outcome': 'RightsOutcome'}),
        ([S + 'clashes.rs', S + 'rights.rs', S + 'resolve.rs', S + 'skeleton.rs'], {'Told::Before': 'ClashReport::Before', 'Told::Last': 'ClashReport::Last', 'Told::Now': 'ClashReport::Now', 'Outcome::Told': 'RightsOutcome::Reported'}),
        ([S + 'clashes.rs', S + 'resolve.rs', S + 'skeleton.rs'], {'Told': 'ClashReport'}),
        ([S + 'live.rs', S + 'union.rs'], {'Changes': 'MembershipChanges'}),
        ([S + 'live.rs'], {'PATIENCE': 'CHANGE_TIMEOUT', 'join': 'join', 'place': 'index', 'place_of': 'index_of', 'LOOK_EVERY': 'LOOK_INTERVAL'}),
        ([S + 'unsynced_dirs.rs', S + 'ops/unlink.rs', S + 'ops/create.rs', S + 'ops/rmdir.rs', S + 'ops/rename.rs', S + 'ops/make.rs', S + 'ops/link.rs', S + 'skeleton.rs', S + 'names.rs', S + 'relocate.rs', S + 'reserve.rs', S + 'exchange.rs', S + 'replace.rs'], {'Change': 'NameEvent'}),
        ([S + 'unsynced_dirs.rs', S + 'branch.rs'], {'Unsynced': 'UnsyncedDirs'}),
        ([S + 'union.rs'], {'A_MOMENT': 'MONITOR_DELAY'}),
        ([S + 'union.rs', S + 'lib.rs', S + 'status.rs', 'tests/engine/', 'tests/model/'], {'Held': 'TableCounts'}),
        ([S + 'ranked.rs'], {'Held': 'HeldRank'}),
        ([S + 'branch_recovery.rs'], {'PATIENCE': 'SETTLE_TIMEOUT'}),
        ([S + 'ops/readdir.rs'], {'PATIENCE': 'LISTING_LOCK_TIMEOUT'}),
        ([S + 'replace.rs', S + 'ops/'], {'take_place': 'take_name', 'take_place_before': 'take_name_before'}),
        ([S + 'refusals.rs'], {'LEAST': 'SHORTEST_REFUSAL'}),
        # users
        (['crates/mount/src/operate/', 'crates/mount/src/command/', 'tests/engine/', 'tests/faults/'], {'Choice': 'PathDecision'} and {}),
        (['crates/mount/src/operate/explain.rs'], {'Choice': 'PathDecision', 'Way': 'WritePathReasons', 'Ranked': 'RankedCandidate', 'choice': 'decision', 'but': 'reason'}),
        (['crates/mount/src/operate/status.rs', 'tests/engine/health.rs', 'tests/faults/'], {'State': 'BranchState'}),
        (['crates/mount/src/copy/'], {'Traits': 'InodeFlags', 'traits': 'inode_flags'}),
        (['crates/fuse/src/transport/'], {'Crew': 'WorkerThread'}),
        (['tests/', 'benches/', 'crates/mount/'], {'ask_patiently': 'ask_long'}),
    ],
    prose=[],
    md=[{'Beside': 'DirectBeside', 'Shape': 'TreeLock', 'Crowd': 'InflightLimit', 'Keeper': 'Monitor', 'Union::shape': 'Union::tree_lock', 'Owed': 'WriteBackErrors', 'Scouts': 'ParallelLookup',
         'Tie': 'IoMode', 'Tenant': 'OpenFileRef', 'Placed': 'BranchFile', 'Making': 'CreateGuard', 'patiently': 'unless_stuck', 'ask_patiently': 'ask_long'}],
)

M = 'crates/mount/'
MS = M + 'src/'
ROUNDS['mount'] = dict(
    moves=[(MS + a, MS + b) for a, b in [
        ('ledger.rs', 'registry.rs'), ('command/patience.rs', 'command/time_limit.rs'), ('copy/place.rs', 'copy/staging.rs'), ('copy/dress.rs', 'copy/metadata.rs'),
    ]],
    texts=mods([M], [('ledger', 'registry'), ('patience', 'time_limit')]) + mods([MS + 'copy/'], [('place', 'staging'), ('dress', 'metadata')]) + [
        ([MS + 'command/args.rs'], r'\b(WritePath|Branch)\(\1\)', r'\1(\1Arguments)'), ([MS + 'command/args.rs'], r'pub struct (WritePath|Branch)\b', r'pub struct \1Arguments'),
        (['tests/', 'benches/', 'xtask/', M], r'\bfsstack::ledger\b', 'fsstack::registry'),
    ],
    words=[
        ([M, 'tests/', 'benches/'], {'LedgerEntry': 'RegistryEntry', 'LedgerBranch': 'RegistryBranch'}),
        ([M], {'Listed': 'Registration', 'LEDGER': 'REGISTRY', 'ledger': 'registry', 'ledgers': 'registries', 'own_ledger': 'own_registry',
               'DoorScheduling': 'TransportScheduling', 'door_scheduling': 'transport_scheduling', 'open_door': 'open_transport', 'LEAVING': 'LEAVING_TIMEOUT',
               'patience': 'timeout', 'examine': 'check', 'keep_told': 'keep_informed'}),
        ([MS + 'settings.rs', MS + 'background.rs', MS + 'options/pool.rs', MS + 'resolve.rs', MS + 'raw.rs', M + 'tests/'], {'Stay': 'RunIn', 'stay': 'run_in', 'Mounts::Stay': 'Mounts::Stay'}),
        ([MS + 'command/write_path.rs'], {'WritePath': 'WritePathArguments'}),
        ([MS + 'command/branch.rs'], {'Branch': 'BranchArguments'}),
        ([MS + 'command/doctor/'], {'Report': 'DoctorReport'}),
        ([MS + 'copy/'], {'Report': 'CopyReport', 'Place': 'Staging', 'place': 'staging', 'Way': 'Stretch', 'Stage': 'LinkStage', 'Turn': 'NextStep', 'First': 'FirstLink',
               'PlaceOrError': 'PlaceOrError', 'PlaceOrError::Place': 'PlaceOrError::Place', 'dress': 'metadata'}),
        ([MS + 'cli.rs'], {'Typed': 'TypedWords'}),
        ([MS + 'exports.rs', MS + 'holders.rs', MS + 'command/nfs/check.rs'], {'Line': 'ExportLine'}),
        ([MS + 'log.rs'], {'Line': 'LogLine'}),
        ([MS + 'operate/metrics.rs'], {'Page': 'MetricsPage'}),
        ([MS + 'log/writer.rs'], {'State': 'WriterState', 'GENEROUS': 'WRITE_TIMEOUT'}),
        ([MS + 'command/nfs/handles.rs'], {'Held': 'HeldHandle', 'PATIENCE': 'SAMPLE_TIMEOUT'}),
        ([MS + 'command/'], {'PATIENCE': 'HUNG_AFTER'}),
        ([MS + 'holders.rs'], {'PATIENCE': 'RELEASE_TIMEOUT'}),
        ([MS + 'log.rs'], {'LAST_LINES': 'LAST_LINES_TIMEOUT'}),
    ],
)
ROUNDS['tools'] = dict(   # lab, bench, benches, xtask
    moves=[('crates/bench/src/ground.rs', 'crates/bench/src/test_bed.rs'), ('crates/bench/src/place.rs', 'crates/bench/src/target.rs'),
           ('crates/bench/tests/program/grounds.rs', 'crates/bench/tests/program/test_beds.rs'),
           ('benches/figures/ground.rs', 'benches/figures/test_bed.rs'), ('xtask/src/faults/ground.rs', 'xtask/src/faults/test_bed.rs'), ('xtask/src/test/tally.rs', 'xtask/src/test/counts.rs')],
    texts=mods(['crates/bench/'], [('ground', 'test_bed'), ('place', 'target'), ('grounds', 'test_beds')])
        + mods(['benches/figures/'], [('ground', 'test_bed')]) + mods(['xtask/src/faults/'], [('ground', 'test_bed')]) + mods(['xtask/src/test/'], [('tally', 'counts')])
,
    words=[
        (['crates/bench/', 'benches/', 'xtask/src/faults/'], {'lab::ground': 'lab::ground', 'fsstack_lab::ground': 'fsstack_lab::ground', 'Ground': 'TestBed', 'ground': 'test_bed'}),
        (['crates/bench/src/'], {'Place': 'TargetDir', 'Shape': 'WorkloadShape', 'Stage': 'GateStage', 'Held': 'HeldFiles'}),
        (['crates/bench/src/engine/ring.rs'], {'Plan': 'RingPlan'}), (['crates/bench/src/engine/'], {'ring::Plan': 'ring::RingPlan'}),
        (['crates/bench/src/compare_runs.rs'], {'Line': 'ComparedLine'}),
        (['crates/bench/src/plan_file.rs'], {'Written': 'WrittenPlan'}),
        (['crates/bench/src/', 'crates/bench/tests/', 'crates/lab/src/', 'benches/figures/', 'xtask/src/'], {'PATIENCE': 'ANSWER_TIMEOUT'}),
        (['benches/figures/'], {'Told': 'Reported', 'Way': 'CopyWay', 'Held': 'HeldHandles', 'State': 'SlowState', 'Crowd': 'Clients', 'crowd': 'clients'}),
        (['benches/suites/'], {'Place': 'BenchDir', 'Ground': 'EngineBed'}),
        (['xtask/src/'], {'Tally': 'TestCounts', 'Told': 'Reported', 'Door': 'TestTransport', 'doors': 'transports'}),
        (['xtask/src/docs/arrows.rs'], {'Uses': 'CrateUses'}), (['xtask/src/test/'], {'Row': 'ReportRow'}), (['xtask/src/faults/'], {'Lab': 'FaultLab'}),
    ],
)

TOK = re.compile(r'''(?P<k>//[^\n]*|/\*.*?\*/)|(?P<s>(?<![A-Za-z0-9_])(?:br|r|cr)(?P<h>\#*)".*?"(?P=h)|(?:(?<![A-Za-z0-9_])[bc])?"(?:\\.|[^"\\])*")|(?P<ch>(?<![A-Za-z0-9_])b?'(?:\\[^u]|\\x..|\\u\{[^}]*\}|[^'\\\n])')''', re.S)

def split(t):
    out, p = [], 0
    for m in TOK.finditer(t):
        out.append(('c', t[p:m.start()]))
        kind = 'k' if m.group('k') else 's' if m.group('s') else 'ch'
        out.append((kind, m.group()))
        p = m.end()
    out.append(('c', t[p:]))
    return out

def git_files():
    out = subprocess.check_output(['git', 'ls-files', '-z', '--cached', '--others', '--exclude-standard'], text=True)
    return [f for f in out.split('\0') if f and os.path.isfile(f)]

def words_re(table):
    return re.compile(r"(?<![A-Za-z0-9_'])(?:r#)?(" + '|'.join(sorted(map(re.escape, table), key=len, reverse=True)) + r')(?![A-Za-z0-9_])')

def code_sub(text, table, prose):
    if not table and not prose: return text
    rx = words_re(table) if table else None
    px = re.compile(r'\b(' + '|'.join(sorted(map(re.escape, prose), key=len, reverse=True)) + r')\b') if prose else None
    sub = (lambda s: rx.sub(lambda m: table[m.group(1)], s)) if rx else (lambda s: s)
    out = []
    for kind, t in split(text):
        if kind == 'c':
            t = sub(t)
        elif kind == 'k':
            # [`Name`] and `name` are code; the rest is prose
            parts = re.split(r'(`[^`\n]*`)', t)
            parts = [sub(p) if p.startswith('`') else (px.sub(lambda m: prose[m.group(1)], p) if px else p) for p in parts]
            t = ''.join(parts)
        elif kind == 's':
            # {name} and {name:?} in format strings
            t = re.sub(r'(?<!\{)\{([a-z_][A-Za-z0-9_]*)((?::[^}]*)?)\}', lambda m: '{' + table.get(m.group(1), m.group(1)) + m.group(2) + '}', t)
        out.append(t)
    return ''.join(out)

def match(path, globs):
    for g in globs:
        if g.endswith('/') and path.startswith(g) or path == g: return True
    return False

def run(name):
    r = ROUNDS[name]
    moves = r.get('moves', [])
    for old, new in moves:
        if os.path.exists(old):
            os.makedirs(os.path.dirname(new.rstrip('/')) or '.', exist_ok=True)
            if os.path.isdir(old):
                for d, _, fs in os.walk(old):
                    for f in fs:
                        to = os.path.join(new, os.path.relpath(os.path.join(d, f), old))
                        os.makedirs(os.path.dirname(to), exist_ok=True)
                        os.rename(os.path.join(d, f), to)
                subprocess.call(['find', old, '-type', 'd', '-empty', '-delete'])
            else:
                os.rename(old, new)
    files = git_files()
    # untracked new names too
    paths, bare = [], []
    for old, new in moves:
        paths.append((old, new))
        if old.startswith('crates/'):
            paths.append((old[len('crates/'):], new[len('crates/'):]))
            o, n = old.split('/src/')[-1], new.split('/src/')[-1]
            if '/' in o: paths.append((o, n))
            else: bare.append((o, n))
    before = r.get('texts', [])
    for f in files:
        if not re.search(r'\.(rs|md|toml|sh|yml|yaml|json|html|txt)$', f) and f != '.ci/run': continue
        if f.startswith(('docs/figures/', 'CHANGELOG')): continue
        try: t = open(f, newline='').read()
        except UnicodeDecodeError: continue
        u = t
        for old, new in paths:
            u = re.sub(r'(?<![\w/-])((?:\.\./)*)' + re.escape(old) + ('' if old.endswith('/') else r'(?![\w])'), lambda m: m.group(1) + new, u)
        if f.startswith(('docs/', 'ARCHITECTURE')):
            for old, new in bare: u = u.replace('`' + old, '`' + new)
        for globs, a, b in before:
            if match(f, globs): u = re.sub(a, b, u, flags=re.M)
        if f.endswith('.rs'):
            table, prose = {}, {}
            for globs, w in r.get('words', []):
                if match(f, globs): table.update(w)
            for globs, w in r.get('prose', []):
                if match(f, globs): prose.update(w)
            if '--warn' in sys.argv:
                code = ''.join(x for k, x in split(u) if k == 'c')
                for o, n in table.items():
                    if re.search(r'(?<![A-Za-z0-9_])' + o + r'(?![A-Za-z0-9_])', code) and re.search(r'(?<![A-Za-z0-9_])' + n + r'(?![A-Za-z0-9_])', code):
                        print(f'{f}: both {o} and {n}')
            u = code_sub(u, table, prose)
        elif f.endswith('.md'):
            table = {}
            for w in r.get('md', []): table.update(w)
            if table:
                rx = words_re(table)
                u = re.sub(r'`[^`\n]*`', lambda m: rx.sub(lambda k: table[k.group(1)], m.group()), u)
        if u != t: open(f, 'w', newline='').write(u)
    subprocess.call(['cargo', 'fmt', '--all'])

if __name__ == '__main__':
    args = [a for a in sys.argv[1:] if not a.startswith('--')]
    if not args or '--list' in sys.argv:
        print(__doc__)
        print(*ROUNDS)
        sys.exit()
    os.chdir(subprocess.check_output(['git', 'rev-parse', '--show-toplevel'], text=True).strip())
    for n in args: run(n)
