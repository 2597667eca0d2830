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

complete -c fsstack -n "__fish_fsstack_needs_command" -l json -d 'Print JSON, as docs/schema describes it'
complete -c fsstack -n "__fish_fsstack_needs_command" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_needs_command" -s V -l version -d 'Print version'
complete -c fsstack -n "__fish_fsstack_needs_command" -f -a "list" -d 'List the mounted pools'
complete -c fsstack -n "__fish_fsstack_needs_command" -f -a "status" -d 'Show a pool, or all: branches, free space, errors, open files'
complete -c fsstack -n "__fish_fsstack_needs_command" -f -a "get" -d 'Show the pool\'s keys, or one'
complete -c fsstack -n "__fish_fsstack_needs_command" -f -a "set" -d 'Change keys of a mounted pool, all of them or none'
complete -c fsstack -n "__fish_fsstack_needs_command" -f -a "write-path" -d 'Switch how bytes reach a branch, from each file\'s next first open on'
complete -c fsstack -n "__fish_fsstack_needs_command" -f -a "branch" -d 'Add, remove or change a branch of a mounted pool'
complete -c fsstack -n "__fish_fsstack_needs_command" -f -a "where" -d 'Show on which branch each path is, and where there'
complete -c fsstack -n "__fish_fsstack_needs_command" -f -a "explain" -d 'Explain why a path is where it is, or where a new file would be put'
complete -c fsstack -n "__fish_fsstack_needs_command" -f -a "copy" -d 'Copy files and trees into a pool, straight onto the branches that its policy chooses'
complete -c fsstack -n "__fish_fsstack_needs_command" -f -a "nfs" -d 'Show how an NFS server exports a pool, and check that all is as it should be'
complete -c fsstack -n "__fish_fsstack_needs_command" -f -a "doctor" -d 'Check the kernel, limits and branches of a pool, or all; each line is ok, warn or fail'
complete -c fsstack -n "__fish_fsstack_needs_command" -f -a "top" -d 'Show live figures: branches, open files, and the CPU of each process in the stack'
complete -c fsstack -n "__fish_fsstack_needs_command" -f -a "metrics" -d 'Print the pool\'s figures in OpenMetrics'
complete -c fsstack -n "__fish_fsstack_needs_command" -f -a "print" -d 'Print a page made from these tables'
complete -c fsstack -n "__fish_fsstack_using_subcommand list" -l json -d 'Print JSON, as docs/schema describes it'
complete -c fsstack -n "__fish_fsstack_using_subcommand list" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand status" -l json -d 'Print JSON, as docs/schema describes it'
complete -c fsstack -n "__fish_fsstack_using_subcommand status" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand get" -l json -d 'Print JSON, as docs/schema describes it'
complete -c fsstack -n "__fish_fsstack_using_subcommand get" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand set" -l dry-run -d 'Only show what would change'
complete -c fsstack -n "__fish_fsstack_using_subcommand set" -l persist -d 'Write the changes to the pool\'s config file too'
complete -c fsstack -n "__fish_fsstack_using_subcommand set" -l json -d 'Print JSON, as docs/schema describes it'
complete -c fsstack -n "__fish_fsstack_using_subcommand set" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand write-path" -l subtree -d 'Only for files below this directory of the pool' -r -f -a "(__fish_complete_directories)"
complete -c fsstack -n "__fish_fsstack_using_subcommand write-path" -l wait -d 'Return when no file is open the other way any more'
complete -c fsstack -n "__fish_fsstack_using_subcommand write-path" -l persist -d 'Write it to the pool\'s config file too'
complete -c fsstack -n "__fish_fsstack_using_subcommand write-path" -l json -d 'Print JSON, as docs/schema describes it'
complete -c fsstack -n "__fish_fsstack_using_subcommand write-path" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand branch; and not __fish_seen_subcommand_from add remove mode floor forget abort" -l json -d 'Print JSON, as docs/schema describes it'
complete -c fsstack -n "__fish_fsstack_using_subcommand branch; and not __fish_seen_subcommand_from add remove mode floor forget abort" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand branch; and not __fish_seen_subcommand_from add remove mode floor forget abort" -f -a "add" -d 'Add a branch after the others'
complete -c fsstack -n "__fish_fsstack_using_subcommand branch; and not __fish_seen_subcommand_from add remove mode floor forget abort" -f -a "remove" -d 'Take a branch out of the pool; its files stay on it'
complete -c fsstack -n "__fish_fsstack_using_subcommand branch; and not __fish_seen_subcommand_from add remove mode floor forget abort" -f -a "mode" -d 'Change what may be done on a branch'
complete -c fsstack -n "__fish_fsstack_using_subcommand branch; and not __fish_seen_subcommand_from add remove mode floor forget abort" -f -a "floor" -d 'Change how much a branch keeps free'
complete -c fsstack -n "__fish_fsstack_using_subcommand branch; and not __fish_seen_subcommand_from add remove mode floor forget abort" -f -a "forget" -d 'Say that a branch that is not in the pool will not come back: NFS handles of what was on it are stale from then on'
complete -c fsstack -n "__fish_fsstack_using_subcommand branch; and not __fish_seen_subcommand_from add remove mode floor forget abort" -f -a "abort" -d 'Free the callers stuck in a hung FUSE branch: aborts the branch\'s own FUSE connection'
complete -c fsstack -n "__fish_fsstack_using_subcommand branch; and __fish_seen_subcommand_from add" -l json -d 'Print JSON, as docs/schema describes it'
complete -c fsstack -n "__fish_fsstack_using_subcommand branch; and __fish_seen_subcommand_from add" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand branch; and __fish_seen_subcommand_from remove" -l when-idle -d 'Place nothing new there, wait until no file is open on it, then remove it'
complete -c fsstack -n "__fish_fsstack_using_subcommand branch; and __fish_seen_subcommand_from remove" -l json -d 'Print JSON, as docs/schema describes it'
complete -c fsstack -n "__fish_fsstack_using_subcommand branch; and __fish_seen_subcommand_from remove" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand branch; and __fish_seen_subcommand_from mode" -l json -d 'Print JSON, as docs/schema describes it'
complete -c fsstack -n "__fish_fsstack_using_subcommand branch; and __fish_seen_subcommand_from mode" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand branch; and __fish_seen_subcommand_from floor" -l json -d 'Print JSON, as docs/schema describes it'
complete -c fsstack -n "__fish_fsstack_using_subcommand branch; and __fish_seen_subcommand_from floor" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand branch; and __fish_seen_subcommand_from forget" -l json -d 'Print JSON, as docs/schema describes it'
complete -c fsstack -n "__fish_fsstack_using_subcommand branch; and __fish_seen_subcommand_from forget" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand branch; and __fish_seen_subcommand_from abort" -l json -d 'Print JSON, as docs/schema describes it'
complete -c fsstack -n "__fish_fsstack_using_subcommand branch; and __fish_seen_subcommand_from abort" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand where" -l json -d 'Print JSON, as docs/schema describes it'
complete -c fsstack -n "__fish_fsstack_using_subcommand where" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand explain" -l size -d 'With create: how large the file will be' -r
complete -c fsstack -n "__fish_fsstack_using_subcommand explain" -l json -d 'Print JSON, as docs/schema describes it'
complete -c fsstack -n "__fish_fsstack_using_subcommand explain" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand copy" -s j -l jobs -d 'Copy with this many threads; the number of CPUs, up to 8, where it is not given' -r
complete -c fsstack -n "__fish_fsstack_using_subcommand copy" -l verify -d 'Read back each file and compare it before it gets its name; compare what is there already'
complete -c fsstack -n "__fish_fsstack_using_subcommand copy" -l json -d 'Print JSON, as docs/schema describes it'
complete -c fsstack -n "__fish_fsstack_using_subcommand copy" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand nfs; and not __fish_seen_subcommand_from show check" -l json -d 'Print JSON, as docs/schema describes it'
complete -c fsstack -n "__fish_fsstack_using_subcommand nfs; and not __fish_seen_subcommand_from show check" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand nfs; and not __fish_seen_subcommand_from show check" -f -a "show" -d 'Show the line of exports(5) and nfs-ganesha\'s block'
complete -c fsstack -n "__fish_fsstack_using_subcommand nfs; and not __fish_seen_subcommand_from show check" -f -a "check" -d 'Check an export: options, identity, index, branches, what the server exports, who holds the pool'
complete -c fsstack -n "__fish_fsstack_using_subcommand nfs; and __fish_seen_subcommand_from show" -l clients -d 'Who may mount it, as exports(5) has them, with blanks between: hosts, networks, or "*" for everybody. Without it the line has the word CLIENTS in their place' -r
complete -c fsstack -n "__fish_fsstack_using_subcommand nfs; and __fish_seen_subcommand_from show" -l install -d 'Write the line to /etc/exports.d, and have a running server read it; only with --clients'
complete -c fsstack -n "__fish_fsstack_using_subcommand nfs; and __fish_seen_subcommand_from show" -l json -d 'Print JSON, as docs/schema describes it'
complete -c fsstack -n "__fish_fsstack_using_subcommand nfs; and __fish_seen_subcommand_from show" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand nfs; and __fish_seen_subcommand_from check" -l json -d 'Print JSON, as docs/schema describes it'
complete -c fsstack -n "__fish_fsstack_using_subcommand nfs; and __fish_seen_subcommand_from check" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand doctor" -l json -d 'Print JSON, as docs/schema describes it'
complete -c fsstack -n "__fish_fsstack_using_subcommand doctor" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand top" -l json -d 'Print JSON, as docs/schema describes it'
complete -c fsstack -n "__fish_fsstack_using_subcommand top" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand metrics" -l json -d 'Print JSON, as docs/schema describes it'
complete -c fsstack -n "__fish_fsstack_using_subcommand metrics" -s h -l help -d 'Print help'
complete -c fsstack -n "__fish_fsstack_using_subcommand print" -l json -d 'Print JSON, as docs/schema describes it'
complete -c fsstack -n "__fish_fsstack_using_subcommand print" -s h -l help -d 'Print help'
