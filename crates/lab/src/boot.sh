# Boots the system in $1 with its own systemd as process 1, in cgroups of its own below ours; ends when that ends.
set -eu
cd "$1"
ours=fsstack-lab
# The hierarchies that systemd needs: of version 1 those for names and processors, and version 2.
hierarchies() {
    while IFS=: read -r _ name path; do
        case $name in
            name=systemd) echo /sys/fs/cgroup/systemd "$path" ;;
            cpu | cpuacct | cpu,cpuacct) echo "/sys/fs/cgroup/$name" "$path" ;;
            "") if [ -d /sys/fs/cgroup/unified ]; then echo /sys/fs/cgroup/unified "$path"; else echo /sys/fs/cgroup "$path"; fi ;;
        esac
    done < /proc/self/cgroup
}
all=$(hierarchies)
# Without a pipe: its processes would be in there too.
each() {
    while read -r dir path; do "$@"; done <<ALL
$all
ALL
}
clear() { [ ! -d "$dir$path/$ours" ] || find "$dir$path/$ours" -depth -type d -exec rmdir {} +; }
enter() { mkdir -p "$dir$path/$ours"; echo $$ > "$dir$path/$ours/cgroup.procs"; }
leave() { echo $$ > "$dir$path/cgroup.procs"; clear; }
each clear
each enter
inside='
mount --bind . .; cd "$1"
mount -t proc proc proc; mount -t sysfs sysfs sys
mount -t tmpfs -o mode=755 tmpfs dev; mount -t tmpfs -o mode=755 tmpfs run
while read -r name major minor; do mknod -m 666 "dev/$name" c "$major" "$minor"; done <<NODES
null 1 3
zero 1 5
full 1 7
random 1 8
urandom 1 9
tty 5 0
fuse 10 229
NODES
mkdir dev/pts dev/shm; mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts
ln -s pts/ptmx dev/ptmx; ln -s /proc/self/fd dev/fd
if [ "$(stat -f -c %T /sys/fs/cgroup)" = cgroup2fs ]; then
    mount -t cgroup2 cgroup2 sys/fs/cgroup
else
    mount -t tmpfs -o mode=755 tmpfs sys/fs/cgroup
    echo "$2" | while read -r dir _; do
        mkdir "sys/fs/cgroup/${dir##*/}"
        case ${dir##*/} in
            unified) mount -t cgroup2 cgroup2 sys/fs/cgroup/unified ;;
            systemd) mount -t cgroup -o none,name=systemd cgroup sys/fs/cgroup/systemd ;;
            *) mount -t cgroup -o "${dir##*/}" cgroup "sys/fs/cgroup/${dir##*/}" ;;
        esac
    done
fi
exec env -i container=lab PATH=/usr/sbin:/usr/bin chroot . /lib/systemd/systemd --log-target=console --show-status=0
'
ended=0
unshare --mount --propagation private --pid --fork --kill-child --cgroup --uts --ipc sh -euc "$inside" inside "$1" "$all" || ended=$?
each leave
exit $ended
