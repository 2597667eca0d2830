# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_fsstack_global_optspecs
    string join \n json h/help V/version
end

function __fish_fsstack_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_fsstack_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_fsstack_using_subcommand
    set -l cmd (__fish_fsstack_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c fsstack -n "__fish_fsstack_needs_command" -l json -d 'Print JSON (schemas: docs/schema)'
complete -c fsstack -n "__fish_fsstack_needs_command" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_needs_command" -s V -l version -d 'Print version'
complete -c fsstack -n "__fish_fsstack_needs_command" -f -a "list" -d 'List the mounted pools'
complete -c fsstack -n "__fish_fsstack_needs_command" -f -a "status" -d 'Show a pool, or all: branches, free space, errors, open files'
complete -c fsstack -n "__fish_fsstack_needs_command" -f -a "get" -d 'Show the pool\'s keys, or one'
complete -c fsstack -n "__fish_fsstack_needs_command" -f -a "set" -d 'Change keys of a mounted pool, all of them or none'
complete -c fsstack -n "__fish_fsstack_needs_command" -f -a "write-path" -d 'Change the write path; takes effect at the next open of a file that is not open'
complete -c fsstack -n "__fish_fsstack_needs_command" -f -a "branch" -d 'Add, remove or change a branch of a mounted pool'
complete -c fsstack -n "__fish_fsstack_needs_command" -f -a "rule" -d 'List, set or remove placement rules: where new files of a directory go'
complete -c fsstack -n "__fish_fsstack_needs_command" -f -a "tier" -d 'Have files of a class of branches move to another class when it is full'
complete -c fsstack -n "__fish_fsstack_needs_command" -f -a "balance" -d 'Move files until the branches of a pool are about as full'
complete -c fsstack -n "__fish_fsstack_needs_command" -f -a "consolidate" -d 'Move all files below a directory to one branch'
complete -c fsstack -n "__fish_fsstack_needs_command" -f -a "job" -d 'List, show, pause or cancel the jobs of a pool'
complete -c fsstack -n "__fish_fsstack_needs_command" -f -a "upgrade" -d 'Replace the pool\'s daemon by another version, or restart it, under open files'
complete -c fsstack -n "__fish_fsstack_needs_command" -f -a "where" -d 'Show the branch of each path, and the path there'
complete -c fsstack -n "__fish_fsstack_needs_command" -f -a "du" -d 'Show sizes of directories from a pool\'s catalogue, without asking its branches (catalogue=on)'
complete -c fsstack -n "__fish_fsstack_needs_command" -f -a "find" -d 'Find names in a pool from its catalogue, without asking its branches (catalogue=on)'
complete -c fsstack -n "__fish_fsstack_needs_command" -f -a "explain" -d 'Explain a path\'s placement, or where a new file would be put'
complete -c fsstack -n "__fish_fsstack_needs_command" -f -a "copy" -d 'Copy files and trees into a pool, directly onto the branches that its policy chooses'
complete -c fsstack -n "__fish_fsstack_needs_command" -f -a "nfs" -d 'Show and check a pool\'s NFS export'
complete -c fsstack -n "__fish_fsstack_needs_command" -f -a "check" -d 'Compare the branches of a pool name by name: what differs or is hidden; --fix mends it'
complete -c fsstack -n "__fish_fsstack_needs_command" -f -a "doctor" -d 'Check the kernel, limits and branches of a pool, or all: ok, warn or fail'
complete -c fsstack -n "__fish_fsstack_needs_command" -f -a "top" -d 'Show live figures: branches, open files, and the CPU of each process in the stack'
complete -c fsstack -n "__fish_fsstack_needs_command" -f -a "log" -d 'Show calls that took long: operation, path, branch, program; sets from when a call is slow'
complete -c fsstack -n "__fish_fsstack_needs_command" -f -a "profile" -d 'Show who does what: calls, their duration and bytes by program, user or directory, in an interval'
complete -c fsstack -n "__fish_fsstack_needs_command" -f -a "support" -d 'Write a text with what a bug report needs: versions, options, state, doctor, metrics, log'
complete -c fsstack -n "__fish_fsstack_needs_command" -f -a "metrics" -d 'Print the pool\'s metrics (OpenMetrics)'
complete -c fsstack -n "__fish_fsstack_needs_command" -f -a "print" -d 'Print a generated page: man page, completions, command reference'
complete -c fsstack -n "__fish_fsstack_using_subcommand list" -l json -d 'Print JSON (schemas: docs/schema)'
complete -c fsstack -n "__fish_fsstack_using_subcommand list" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand status" -l json -d 'Print JSON (schemas: docs/schema)'
complete -c fsstack -n "__fish_fsstack_using_subcommand status" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand get" -l json -d 'Print JSON (schemas: docs/schema)'
complete -c fsstack -n "__fish_fsstack_using_subcommand get" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand set" -l dry-run -d 'Only show what would change'
complete -c fsstack -n "__fish_fsstack_using_subcommand set" -l persist -d 'Also write the changes to the pool\'s config file'
complete -c fsstack -n "__fish_fsstack_using_subcommand set" -l json -d 'Print JSON (schemas: docs/schema)'
complete -c fsstack -n "__fish_fsstack_using_subcommand set" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand write-path" -l subtree -d 'Only for files below this directory of the pool, which need not exist: a path below the mount point, one from the working directory in the pool, or an absolute one from the pool\'s root' -r -f -a "(__fish_complete_directories)"
complete -c fsstack -n "__fish_fsstack_using_subcommand write-path" -l wait -d 'Wait until no file is open by the other path'
complete -c fsstack -n "__fish_fsstack_using_subcommand write-path" -l persist -d 'Also write it to the pool\'s config file'
complete -c fsstack -n "__fish_fsstack_using_subcommand write-path" -l json -d 'Print JSON (schemas: docs/schema)'
complete -c fsstack -n "__fish_fsstack_using_subcommand write-path" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand branch; and not __fish_seen_subcommand_from add remove drain mode floor forget lost abort" -l json -d 'Print JSON (schemas: docs/schema)'
complete -c fsstack -n "__fish_fsstack_using_subcommand branch; and not __fish_seen_subcommand_from add remove drain mode floor forget lost abort" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand branch; and not __fish_seen_subcommand_from add remove drain mode floor forget lost abort" -f -a "add" -d 'Add a branch after the others'
complete -c fsstack -n "__fish_fsstack_using_subcommand branch; and not __fish_seen_subcommand_from add remove drain mode floor forget lost abort" -f -a "remove" -d 'Remove a branch from the pool; its files stay on it'
complete -c fsstack -n "__fish_fsstack_using_subcommand branch; and not __fish_seen_subcommand_from add remove drain mode floor forget lost abort" -f -a "drain" -d 'Move everything on a branch to the others, so that it can be removed; it takes nothing new from now on'
complete -c fsstack -n "__fish_fsstack_using_subcommand branch; and not __fish_seen_subcommand_from add remove drain mode floor forget lost abort" -f -a "mode" -d 'Change a branch\'s mode'
complete -c fsstack -n "__fish_fsstack_using_subcommand branch; and not __fish_seen_subcommand_from add remove drain mode floor forget lost abort" -f -a "floor" -d 'Change a branch\'s floor: the free space that new files leave'
complete -c fsstack -n "__fish_fsstack_using_subcommand branch; and not __fish_seen_subcommand_from add remove drain mode floor forget lost abort" -f -a "forget" -d 'Declare that a branch outside the pool will not come back: NFS handles of its objects become stale'
complete -c fsstack -n "__fish_fsstack_using_subcommand branch; and not __fish_seen_subcommand_from add remove drain mode floor forget lost abort" -f -a "lost" -d 'List what only this branch has, from the pool\'s catalogue: what is lost if it is dead (catalogue=on)'
complete -c fsstack -n "__fish_fsstack_using_subcommand branch; and not __fish_seen_subcommand_from add remove drain mode floor forget lost abort" -f -a "abort" -d 'Free the callers stuck in a hung FUSE branch: aborts the branch\'s own FUSE connection'
complete -c fsstack -n "__fish_fsstack_using_subcommand branch; and __fish_seen_subcommand_from add" -l json -d 'Print JSON (schemas: docs/schema)'
complete -c fsstack -n "__fish_fsstack_using_subcommand branch; and __fish_seen_subcommand_from add" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand branch; and __fish_seen_subcommand_from remove" -l when-idle -d 'Place nothing new there, wait until no file is open on it, then remove it'
complete -c fsstack -n "__fish_fsstack_using_subcommand branch; and __fish_seen_subcommand_from remove" -l json -d 'Print JSON (schemas: docs/schema)'
complete -c fsstack -n "__fish_fsstack_using_subcommand branch; and __fish_seen_subcommand_from remove" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand branch; and __fish_seen_subcommand_from drain" -l to -d 'Only these branches take the files' -r -f -a "(__fish_complete_directories)"
complete -c fsstack -n "__fish_fsstack_using_subcommand branch; and __fish_seen_subcommand_from drain" -l hidden -d 'Objects hidden by others of their name: stop refuses to begin and names them; move sets them aside in the hidden folder of another branch; delete removes those that are the same as what the pool shows' -r -f -a "stop\t''
move\t''
delete\t''"
complete -c fsstack -n "__fish_fsstack_using_subcommand branch; and __fish_seen_subcommand_from drain" -l rate -d 'Maximum bytes a second (100M)' -r
complete -c fsstack -n "__fish_fsstack_using_subcommand branch; and __fish_seen_subcommand_from drain" -l window -d 'Part of the local day in which files move (01:00-06:00, 22:30-05:00); the job is parked outside of it' -r
complete -c fsstack -n "__fish_fsstack_using_subcommand branch; and __fish_seen_subcommand_from drain" -l verify -d 'Read each copy back and compare it before the old one goes'
complete -c fsstack -n "__fish_fsstack_using_subcommand branch; and __fish_seen_subcommand_from drain" -l make-way -d 'Have files that programs keep open by passthrough use the daemon from their next first open on, so that they move while open'
complete -c fsstack -n "__fish_fsstack_using_subcommand branch; and __fish_seen_subcommand_from drain" -l dry-run -d 'Only show what would move, and what would stay'
complete -c fsstack -n "__fish_fsstack_using_subcommand branch; and __fish_seen_subcommand_from drain" -l json -d 'Print JSON (schemas: docs/schema)'
complete -c fsstack -n "__fish_fsstack_using_subcommand branch; and __fish_seen_subcommand_from drain" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand branch; and __fish_seen_subcommand_from mode" -l json -d 'Print JSON (schemas: docs/schema)'
complete -c fsstack -n "__fish_fsstack_using_subcommand branch; and __fish_seen_subcommand_from mode" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand branch; and __fish_seen_subcommand_from floor" -l json -d 'Print JSON (schemas: docs/schema)'
complete -c fsstack -n "__fish_fsstack_using_subcommand branch; and __fish_seen_subcommand_from floor" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand branch; and __fish_seen_subcommand_from forget" -l json -d 'Print JSON (schemas: docs/schema)'
complete -c fsstack -n "__fish_fsstack_using_subcommand branch; and __fish_seen_subcommand_from forget" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand branch; and __fish_seen_subcommand_from lost" -l json -d 'Print JSON (schemas: docs/schema)'
complete -c fsstack -n "__fish_fsstack_using_subcommand branch; and __fish_seen_subcommand_from lost" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand branch; and __fish_seen_subcommand_from abort" -l json -d 'Print JSON (schemas: docs/schema)'
complete -c fsstack -n "__fish_fsstack_using_subcommand branch; and __fish_seen_subcommand_from abort" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand rule; and not __fish_seen_subcommand_from list set remove" -l json -d 'Print JSON (schemas: docs/schema)'
complete -c fsstack -n "__fish_fsstack_using_subcommand rule; and not __fish_seen_subcommand_from list set remove" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand rule; and not __fish_seen_subcommand_from list set remove" -f -a "list" -d 'List the placement rules, and the branches that they name'
complete -c fsstack -n "__fish_fsstack_using_subcommand rule; and not __fish_seen_subcommand_from list set remove" -f -a "set" -d 'Make a rule for a directory and all below it, in place of the one that it has'
complete -c fsstack -n "__fish_fsstack_using_subcommand rule; and not __fish_seen_subcommand_from list set remove" -f -a "remove" -d 'Remove the rule for a directory'
complete -c fsstack -n "__fish_fsstack_using_subcommand rule; and __fish_seen_subcommand_from list" -l json -d 'Print JSON (schemas: docs/schema)'
complete -c fsstack -n "__fish_fsstack_using_subcommand rule; and __fish_seen_subcommand_from list" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand rule; and __fish_seen_subcommand_from set" -l persist -d 'Also write it to the pool\'s config file'
complete -c fsstack -n "__fish_fsstack_using_subcommand rule; and __fish_seen_subcommand_from set" -l json -d 'Print JSON (schemas: docs/schema)'
complete -c fsstack -n "__fish_fsstack_using_subcommand rule; and __fish_seen_subcommand_from set" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand rule; and __fish_seen_subcommand_from remove" -l persist -d 'Also remove it from the pool\'s config file'
complete -c fsstack -n "__fish_fsstack_using_subcommand rule; and __fish_seen_subcommand_from remove" -l json -d 'Print JSON (schemas: docs/schema)'
complete -c fsstack -n "__fish_fsstack_using_subcommand rule; and __fish_seen_subcommand_from remove" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand tier; and not __fish_seen_subcommand_from status set remove" -l json -d 'Print JSON (schemas: docs/schema)'
complete -c fsstack -n "__fish_fsstack_using_subcommand tier; and not __fish_seen_subcommand_from status set remove" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand tier; and not __fish_seen_subcommand_from status set remove" -f -a "status" -d 'Show the tiers: how full their classes are, and what they do'
complete -c fsstack -n "__fish_fsstack_using_subcommand tier; and not __fish_seen_subcommand_from status set remove" -f -a "set" -d 'Have files of a class move to another class when it is full, in place of the tier that the class has'
complete -c fsstack -n "__fish_fsstack_using_subcommand tier; and not __fish_seen_subcommand_from status set remove" -f -a "remove" -d 'Remove the tier of a class; what was moved stays moved'
complete -c fsstack -n "__fish_fsstack_using_subcommand tier; and __fish_seen_subcommand_from status" -l json -d 'Print JSON (schemas: docs/schema)'
complete -c fsstack -n "__fish_fsstack_using_subcommand tier; and __fish_seen_subcommand_from status" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand tier; and __fish_seen_subcommand_from set" -l start -d 'Used share of FAST above which files leave' -r
complete -c fsstack -n "__fish_fsstack_using_subcommand tier; and __fish_seen_subcommand_from set" -l stop -d 'Used share of FAST at which they stop' -r
complete -c fsstack -n "__fish_fsstack_using_subcommand tier; and __fish_seen_subcommand_from set" -l order -d 'Files that leave first: atime (used least recently), mtime (written least recently) or size (the largest)' -r -f -a "atime\t''
mtime\t''
size\t''"
complete -c fsstack -n "__fish_fsstack_using_subcommand tier; and __fish_seen_subcommand_from set" -l min-age -d 'Files that were used in this time stay (7d, 12h); with --order mtime: that were written' -r
complete -c fsstack -n "__fish_fsstack_using_subcommand tier; and __fish_seen_subcommand_from set" -l window -d 'Part of the local day in which files leave (01:00-06:00, 22:30-05:00)' -r
complete -c fsstack -n "__fish_fsstack_using_subcommand tier; and __fish_seen_subcommand_from set" -l rate -d 'Maximum bytes a second (50M)' -r
complete -c fsstack -n "__fish_fsstack_using_subcommand tier; and __fish_seen_subcommand_from set" -l make-way -d 'Have files that programs keep open by passthrough use the daemon from their next first open on, so that they move while open'
complete -c fsstack -n "__fish_fsstack_using_subcommand tier; and __fish_seen_subcommand_from set" -l dry-run -d 'Only show what the tier would move now; nothing is set'
complete -c fsstack -n "__fish_fsstack_using_subcommand tier; and __fish_seen_subcommand_from set" -l persist -d 'Also write it to the pool\'s config file'
complete -c fsstack -n "__fish_fsstack_using_subcommand tier; and __fish_seen_subcommand_from set" -l json -d 'Print JSON (schemas: docs/schema)'
complete -c fsstack -n "__fish_fsstack_using_subcommand tier; and __fish_seen_subcommand_from set" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand tier; and __fish_seen_subcommand_from remove" -l persist -d 'Also remove it from the pool\'s config file'
complete -c fsstack -n "__fish_fsstack_using_subcommand tier; and __fish_seen_subcommand_from remove" -l json -d 'Print JSON (schemas: docs/schema)'
complete -c fsstack -n "__fish_fsstack_using_subcommand tier; and __fish_seen_subcommand_from remove" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand balance" -l by -d 'Measure that is to be equal: percent (the used share) or free (free bytes)' -r -f -a "percent\t''
free\t''"
complete -c fsstack -n "__fish_fsstack_using_subcommand balance" -l until -d 'How far branches may be apart: of their size, or for free bytes of the mean size' -r
complete -c fsstack -n "__fish_fsstack_using_subcommand balance" -l rate -d 'Maximum bytes a second (100M)' -r
complete -c fsstack -n "__fish_fsstack_using_subcommand balance" -l window -d 'Part of the local day in which files move (01:00-06:00, 22:30-05:00); the job is parked outside of it' -r
complete -c fsstack -n "__fish_fsstack_using_subcommand balance" -l rules -d 'Move what lies against the placement rules to branches that they name, instead of filling branches alike'
complete -c fsstack -n "__fish_fsstack_using_subcommand balance" -l verify -d 'Read each copy back and compare it before the old one goes'
complete -c fsstack -n "__fish_fsstack_using_subcommand balance" -l make-way -d 'Have files that programs keep open by passthrough use the daemon from their next first open on, so that they move while open'
complete -c fsstack -n "__fish_fsstack_using_subcommand balance" -l dry-run -d 'Only show what would move, and what would stay'
complete -c fsstack -n "__fish_fsstack_using_subcommand balance" -l json -d 'Print JSON (schemas: docs/schema)'
complete -c fsstack -n "__fish_fsstack_using_subcommand balance" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand consolidate" -l to -d 'The branch that takes the files; default: the one that has most of them, if there is room for the rest' -r -f -a "(__fish_complete_directories)"
complete -c fsstack -n "__fish_fsstack_using_subcommand consolidate" -l rate -d 'Maximum bytes a second (100M)' -r
complete -c fsstack -n "__fish_fsstack_using_subcommand consolidate" -l window -d 'Part of the local day in which files move (01:00-06:00, 22:30-05:00); the job is parked outside of it' -r
complete -c fsstack -n "__fish_fsstack_using_subcommand consolidate" -l verify -d 'Read each copy back and compare it before the old one goes'
complete -c fsstack -n "__fish_fsstack_using_subcommand consolidate" -l make-way -d 'Have files that programs keep open by passthrough use the daemon from their next first open on, so that they move while open'
complete -c fsstack -n "__fish_fsstack_using_subcommand consolidate" -l dry-run -d 'Only show what would move, and what would stay'
complete -c fsstack -n "__fish_fsstack_using_subcommand consolidate" -l json -d 'Print JSON (schemas: docs/schema)'
complete -c fsstack -n "__fish_fsstack_using_subcommand consolidate" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand job; and not __fish_seen_subcommand_from list status pause resume cancel" -l json -d 'Print JSON (schemas: docs/schema)'
complete -c fsstack -n "__fish_fsstack_using_subcommand job; and not __fish_seen_subcommand_from list status pause resume cancel" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand job; and not __fish_seen_subcommand_from list status pause resume cancel" -f -a "list" -d 'List the jobs at work, and the last that have ended'
complete -c fsstack -n "__fish_fsstack_using_subcommand job; and not __fish_seen_subcommand_from list status pause resume cancel" -f -a "status" -d 'Show a job'
complete -c fsstack -n "__fish_fsstack_using_subcommand job; and not __fish_seen_subcommand_from list status pause resume cancel" -f -a "pause" -d 'Have a job begin no further move for now; the move under way goes on to its end'
complete -c fsstack -n "__fish_fsstack_using_subcommand job; and not __fish_seen_subcommand_from list status pause resume cancel" -f -a "resume" -d 'Have a paused job go on'
complete -c fsstack -n "__fish_fsstack_using_subcommand job; and not __fish_seen_subcommand_from list status pause resume cancel" -f -a "cancel" -d 'Call a job off; what it has moved stays moved'
complete -c fsstack -n "__fish_fsstack_using_subcommand job; and __fish_seen_subcommand_from list" -l json -d 'Print JSON (schemas: docs/schema)'
complete -c fsstack -n "__fish_fsstack_using_subcommand job; and __fish_seen_subcommand_from list" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand job; and __fish_seen_subcommand_from status" -l why -d 'Name what stays, and why'
complete -c fsstack -n "__fish_fsstack_using_subcommand job; and __fish_seen_subcommand_from status" -l json -d 'Print JSON (schemas: docs/schema)'
complete -c fsstack -n "__fish_fsstack_using_subcommand job; and __fish_seen_subcommand_from status" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand job; and __fish_seen_subcommand_from pause" -l json -d 'Print JSON (schemas: docs/schema)'
complete -c fsstack -n "__fish_fsstack_using_subcommand job; and __fish_seen_subcommand_from pause" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand job; and __fish_seen_subcommand_from resume" -l json -d 'Print JSON (schemas: docs/schema)'
complete -c fsstack -n "__fish_fsstack_using_subcommand job; and __fish_seen_subcommand_from resume" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand job; and __fish_seen_subcommand_from cancel" -l json -d 'Print JSON (schemas: docs/schema)'
complete -c fsstack -n "__fish_fsstack_using_subcommand job; and __fish_seen_subcommand_from cancel" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand upgrade" -l program -d 'The program, owned by root and writable by nobody else; default: the path that the running one was started from' -r -F
complete -c fsstack -n "__fish_fsstack_using_subcommand upgrade" -l json -d 'Print JSON (schemas: docs/schema)'
complete -c fsstack -n "__fish_fsstack_using_subcommand upgrade" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand where" -l catalogue -d 'Look in the pool\'s catalogue, without asking its branches (catalogue=on); symbolic links in a path are not followed'
complete -c fsstack -n "__fish_fsstack_using_subcommand where" -l json -d 'Print JSON (schemas: docs/schema)'
complete -c fsstack -n "__fish_fsstack_using_subcommand where" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand du" -l depth -d 'Show directories so many names below it; 0: the sum only' -r
complete -c fsstack -n "__fish_fsstack_using_subcommand du" -l branch -d 'Only files of this branch, which may be dead or have left the pool' -r -f -a "(__fish_complete_directories)"
complete -c fsstack -n "__fish_fsstack_using_subcommand du" -l json -d 'Print JSON (schemas: docs/schema)'
complete -c fsstack -n "__fish_fsstack_using_subcommand du" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand find" -l name -d 'Only names that match this pattern of the shell: *.mkv' -r
complete -c fsstack -n "__fish_fsstack_using_subcommand find" -l branch -d 'Only names of this branch, which may be dead or have left the pool' -r -f -a "(__fish_complete_directories)"
complete -c fsstack -n "__fish_fsstack_using_subcommand find" -l json -d 'Print JSON (schemas: docs/schema)'
complete -c fsstack -n "__fish_fsstack_using_subcommand find" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand explain" -l size -d 'With create: expected size of the file' -r
complete -c fsstack -n "__fish_fsstack_using_subcommand explain" -l json -d 'Print JSON (schemas: docs/schema)'
complete -c fsstack -n "__fish_fsstack_using_subcommand explain" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand copy" -s j -l jobs -d 'Number of threads; default: the number of CPUs, at most 8' -r
complete -c fsstack -n "__fish_fsstack_using_subcommand copy" -l verify -d 'Read back and compare each file before it gets its name; also compare files that exist'
complete -c fsstack -n "__fish_fsstack_using_subcommand copy" -l json -d 'Print JSON (schemas: docs/schema)'
complete -c fsstack -n "__fish_fsstack_using_subcommand copy" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand nfs; and not __fish_seen_subcommand_from show check" -l json -d 'Print JSON (schemas: docs/schema)'
complete -c fsstack -n "__fish_fsstack_using_subcommand nfs; and not __fish_seen_subcommand_from show check" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand nfs; and not __fish_seen_subcommand_from show check" -f -a "show" -d 'Show the export line for exports(5) and the block for nfs-ganesha'
complete -c fsstack -n "__fish_fsstack_using_subcommand nfs; and not __fish_seen_subcommand_from show check" -f -a "check" -d 'Check an export: options, identity, index, branches, what the server exports, who holds the pool'
complete -c fsstack -n "__fish_fsstack_using_subcommand nfs; and __fish_seen_subcommand_from show" -l clients -d 'Clients as in exports(5), separated by blanks: hosts, networks, or "*" for all. Without this option the line has the word CLIENTS in their place' -r
complete -c fsstack -n "__fish_fsstack_using_subcommand nfs; and __fish_seen_subcommand_from show" -l install -d 'Write the line to /etc/exports.d, and have a running server read it; only with --clients'
complete -c fsstack -n "__fish_fsstack_using_subcommand nfs; and __fish_seen_subcommand_from show" -l only-writer -d 'Only clients of this server change files of the pool: caches may keep them for a minute'
complete -c fsstack -n "__fish_fsstack_using_subcommand nfs; and __fish_seen_subcommand_from show" -l json -d 'Print JSON (schemas: docs/schema)'
complete -c fsstack -n "__fish_fsstack_using_subcommand nfs; and __fish_seen_subcommand_from show" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand nfs; and __fish_seen_subcommand_from check" -l json -d 'Print JSON (schemas: docs/schema)'
complete -c fsstack -n "__fish_fsstack_using_subcommand nfs; and __fish_seen_subcommand_from check" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand check" -l from -d 'Go on at this path of the pool, as an interrupted check has printed it' -r -F
complete -c fsstack -n "__fish_fsstack_using_subcommand check" -l older-than -d 'Age from which an object in a branch\'s hidden folder is a leftover (30m, 1h, 2d)' -r
complete -c fsstack -n "__fish_fsstack_using_subcommand check" -l fix -d 'Fix what can be fixed without loss; what is replaced is kept until --prune'
complete -c fsstack -n "__fish_fsstack_using_subcommand check" -l prune -d 'List and remove what earlier runs with --fix have kept; checks nothing'
complete -c fsstack -n "__fish_fsstack_using_subcommand check" -l json -d 'Print JSON (schemas: docs/schema)'
complete -c fsstack -n "__fish_fsstack_using_subcommand check" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand doctor" -l json -d 'Print JSON (schemas: docs/schema)'
complete -c fsstack -n "__fish_fsstack_using_subcommand doctor" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand top" -l json -d 'Print JSON (schemas: docs/schema)'
complete -c fsstack -n "__fish_fsstack_using_subcommand top" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand log" -l slow -d 'From when a call is slow (500us, 100ms, 2s), or off; without it what was set before stays' -r
complete -c fsstack -n "__fish_fsstack_using_subcommand log" -s f -l follow -d 'Go on with calls as they end, until Ctrl-C; with --json one object a line'
complete -c fsstack -n "__fish_fsstack_using_subcommand log" -l json -d 'Print JSON (schemas: docs/schema)'
complete -c fsstack -n "__fish_fsstack_using_subcommand log" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand profile" -l interval -d 'Length of an interval (500ms, 2s)' -r
complete -c fsstack -n "__fish_fsstack_using_subcommand profile" -l pid -d 'By process; the default'
complete -c fsstack -n "__fish_fsstack_using_subcommand profile" -l uid -d 'By user'
complete -c fsstack -n "__fish_fsstack_using_subcommand profile" -l dir -d 'By directory'
complete -c fsstack -n "__fish_fsstack_using_subcommand profile" -l json -d 'Print JSON (schemas: docs/schema)'
complete -c fsstack -n "__fish_fsstack_using_subcommand profile" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand support" -s o -l output -d 'The file to write, which must not exist; default: standard output' -r -F
complete -c fsstack -n "__fish_fsstack_using_subcommand support" -l with-names -d 'Leave names in'
complete -c fsstack -n "__fish_fsstack_using_subcommand support" -l json -d 'Print JSON (schemas: docs/schema)'
complete -c fsstack -n "__fish_fsstack_using_subcommand support" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand metrics" -l json -d 'Print JSON (schemas: docs/schema)'
complete -c fsstack -n "__fish_fsstack_using_subcommand metrics" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand print" -l json -d 'Print JSON (schemas: docs/schema)'
complete -c fsstack -n "__fish_fsstack_using_subcommand print" -s h -l help -d 'Print help'
