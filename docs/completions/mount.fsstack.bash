_mount.fsstack() {
    local i cur prev opts cmd
    COMPREPLY=()
    if [[ "${BASH_VERSINFO[0]}" -ge 4 ]]; then
        cur="$2"
    else
        cur="${COMP_WORDS[COMP_CWORD]}"
    fi
    prev="$3"
    cmd=""
    opts=""

    for i in "${COMP_WORDS[@]:0:COMP_CWORD}"
    do
        case "${cmd},${i}" in
            ",$1")
                cmd="mount.fsstack"
                ;;
            *)
                ;;
        esac
    done

    case "${cmd}" in
        mount.fsstack)
            opts="-o -f -n -s -v -h -V --options --fake --verbose --print --help --version"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 1 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --options)
                    COMPREPLY=($(compgen -W "create= place-rules= tiers= minfreespace= mlimit= min-inodes= relocate relocate-verify= relocate-speed= require= branches-timeout= write-path= write-rules= page-cache= passthrough-headroom= attr-timeout= entry-timeout= negative-timeout= out-of-band= branch-timeout= branch-inflight= degraded= transport= door-scheduling= max-threads= max-write= statfs= locks= xattr= nfs-export nfs-identity= allow_other default_permissions idmap mergerfs-control= fsname= subtype= config= state-dir= catalogue metrics= nonempty foreground seccomp= restart= log= log-level=" -- "${cur}"))
                    return 0
                    ;;
                -o)
                    COMPREPLY=($(compgen -W "create= place-rules= tiers= minfreespace= mlimit= min-inodes= relocate relocate-verify= relocate-speed= require= branches-timeout= write-path= write-rules= page-cache= passthrough-headroom= attr-timeout= entry-timeout= negative-timeout= out-of-band= branch-timeout= branch-inflight= degraded= transport= door-scheduling= max-threads= max-write= statfs= locks= xattr= nfs-export nfs-identity= allow_other default_permissions idmap mergerfs-control= fsname= subtype= config= state-dir= catalogue metrics= nonempty foreground seccomp= restart= log= log-level=" -- "${cur}"))
                    return 0
                    ;;
                --print)
                    COMPREPLY=($(compgen -W "help options-md readme-options man completions-bash completions-zsh completions-fish" -- "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
    esac
}

if [[ "${BASH_VERSINFO[0]}" -eq 4 && "${BASH_VERSINFO[1]}" -ge 4 || "${BASH_VERSINFO[0]}" -gt 4 ]]; then
    complete -F _mount.fsstack -o nosort -o bashdefault -o default mount.fsstack
else
    complete -F _mount.fsstack -o bashdefault -o default mount.fsstack
fi
