# docs/install.md on one machine, by root of it: install, make, start, mount; servers that die and that stand still; an upgrade
# under a mount; removal.
export DEBIAN_FRONTEND=noninteractive
died() { systemctl show -p NRestarts --value "$1"; }
dpkg --force-depends -i /opt/stria.deb
setpriv --reuid stria --regid stria --clear-groups stria mkfs --dir /var/lib/stria/scratch --osts 2 --set cluster.fsname=scratch
echo 'STRIA_MDS_OPTIONS=--listen 127.0.0.1:7988 --set metrics.listen=127.0.0.1:9100
STRIA_OSTS=0-1
STRIA_OSS_OPTIONS=--listen 127.0.0.1:7989 --mds 127.0.0.1:7988 --set metrics.listen=127.0.0.1:9101' > /etc/stria/scratch.conf
mkdir -p /etc/systemd/system/stria-oss@.service.d
printf '[Service]\nWatchdogSec=3\n' > /etc/systemd/system/stria-oss@.service.d/quick.conf
systemctl daemon-reload
systemctl enable --now stria-mds@scratch
systemctl enable --now stria-oss@scratch
install -m 600 /var/lib/stria/scratch/keys/client.key /etc/stria/scratch.key
mkdir /scratch
echo '127.0.0.1:7988 /scratch stria _netdev,nofail,key=/etc/stria/scratch.key,noatime 0 0' > /etc/fstab
systemctl daemon-reload
systemctl start scratch.mount
stria status /scratch
stria setstripe -c -1 /scratch/wide
dd if=/dev/urandom of=/scratch/wide bs=1M count=8
md5sum /scratch/wide > /scratch/sum
# What is asked of a server that is away waits for the one that the service manager starts.
systemctl kill --kill-who=main -s KILL stria-mds@scratch
sync -f /scratch/sum; mkdir /scratch/dir; ls /scratch/dir
test "$(died stria-mds@scratch)" = 1
# Nothing but the watchdog ends a server that stands still.
systemctl kill --kill-who=main -s STOP stria-oss@scratch
dd if=/scratch/wide iflag=direct bs=1M of=/dev/null
test "$(died stria-oss@scratch)" = 1
# An upgrade restarts the servers; the mount stays.
dpkg --force-depends -i /opt/stria.deb
md5sum -c /scratch/sum; rmdir /scratch/dir
systemctl is-active stria-mds@scratch stria-oss@scratch
systemctl stop scratch.mount
systemctl start scratch.mount
md5sum -c /scratch/sum
journalctl --no-pager -u stria-mds@scratch -u stria-oss@scratch -o cat | grep -c "metadata server of 'scratch' at"
systemctl stop scratch.mount
dpkg -P stria
stat -c '%U %a kept' /var/lib/stria/scratch
! pgrep -a stria
