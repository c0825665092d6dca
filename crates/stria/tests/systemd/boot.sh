# Boots machines with a real service manager, each with this machine's files under a layer of its own, joined by a bridge; runs a
# script as root of each, and prints what the scripts said. Exits with 77 where overlays cannot be mounted.
# In mount and network namespaces of its own: $1 an empty directory, $2 the package; then for each machine its name and its script.
# The first has the address 192.0.2.1, the next one 192.0.2.2. Every /between/NAME that a script speaks of is a pipe that all have.
set -e
dir=$1 package=$2
shift 2
mount -t tmpfs none "$dir"
mkdir "$dir/between"
ip link add between type bridge
ip link set between up

# $1: name, $2: address, $3: script
prepare() {
    local at="$dir/$1"
    local root="$at/files"
    mkdir -p "$at/upper/between" "$at/work" "$root"
    mount -t overlay -o "lowerdir=/,upperdir=$at/upper,workdir=$at/work" none "$root" || exit 77
    od -An -N16 -tx1 /dev/urandom | tr -d ' \n' > "$root/etc/machine-id"
    cp "$package" "$root/opt/stria.deb"
    printf '%s' "$3" > "$root/opt/hour.sh"
    for pipe in $(grep -o '/between/[a-z0-9]*' "$root/opt/hour.sh" | sort -u); do
        [ -p "$dir$pipe" ] || mkfifo "$dir$pipe"
    done
    # Nothing of this machine starts but what the test is about.
    rm -rf "$root"/etc/systemd/system/*.wants "$root/etc/fstab"
    ln -sf /bin/true "$root/usr/bin/mandb"
    cat > "$root/etc/systemd/system/address.service" <<UNIT
[Unit]
Before=network-online.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -c 'ip address add $2/24 dev host0 && ip link set host0 up'
UNIT
    cat > "$root/etc/systemd/system/hour.service" <<UNIT
[Unit]
After=multi-user.target
[Service]
Type=oneshot
TimeoutStartSec=600
TimeoutStopSec=10
ExecStart=/bin/sh -c 'sh -ex /opt/hour.sh >>/opt/hour.log 2>&1 && echo finished >>/opt/hour.log'
ExecStopPost=/bin/sh -c 'test -e /run/reboots || systemctl --no-block poweroff'
UNIT
    local wants="$root/etc/systemd/system"
    mkdir -p "$wants/multi-user.target.wants" "$wants/network-online.target.wants"
    ln -sf ../hour.service "$wants/multi-user.target.wants/hour.service"
    ln -sf ../address.service "$wants/network-online.target.wants/address.service"
    ln -sf /lib/systemd/system/multi-user.target "$wants/default.target"
    ln -sf /lib/systemd/system/remote-fs.target "$wants/multi-user.target.wants/remote-fs.target"
}

names=()
while [ $# -gt 0 ]; do
    names+=("$1")
    prepare "$1" "192.0.2.${#names[@]}" "$2"
    shift 2
done
boot() {
    local status=133 above
    # A control group for each, in every tree of groups that service managers use: theirs have the same names, and they end what runs in them.
    local procs=()
    own_group() {
        [ -e "$1/cgroup.procs" ] && mkdir "$1/stria-$$-$2" 2> /dev/null || return 0
        echo $BASHPID > "$1/stria-$$-$2/cgroup.procs"
        procs+=("$1/cgroup.procs")
    }
    own_group "/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup)" "$1"
    own_group "/sys/fs/cgroup/unified$(sed -n 's/^0:://p' /proc/self/cgroup)" "$1"
    own_group "/sys/fs/cgroup/systemd$(sed -n 's/^[0-9]*:name=systemd://p' /proc/self/cgroup)" "$1"
    # 133: the machine reboots.
    while [ $status = 133 ]; do
        status=0
        timeout -k 10 900 systemd-nspawn -q -b -M "$1" -D "$dir/$1/files" --bind=/dev/fuse --bind="$dir/between:/between" \
            --network-bridge=between --register=no --keep-unit >> "$dir/$1/console" 2>&1 < /dev/null || status=$?
    done
    for above in "${procs[@]}"; do
        echo $BASHPID > "$above"
        find "${above%/cgroup.procs}/stria-$$-$1" -depth -type d -exec rmdir {} + || true
    done
    # The others wait for one that failed.
    grep -qx finished "$dir/$1/files/opt/hour.log" || pkill -f -- "systemd-nspawn .* -D $dir/" || true
}
for name in "${names[@]}"; do
    boot "$name" &
done
wait
for name in "${names[@]}"; do
    echo "== $name"
    cat "$dir/$name/files/opt/hour.log" || cat "$dir/$name/console"
done
