# docs/install.md on `oss1`, and a reboot amid work on its own mount.
export DEBIAN_FRONTEND=noninteractive
if [ -e /opt/rebooted ]; then
    # What is enabled serves, what is in fstab is mounted.
    systemctl is-active stria-oss@scratch scratch.mount
    md5sum -c /scratch/sum /scratch/of-oss1.sum
    journalctl -b -1 --no-pager -o cat -u scratch.mount -u stria-oss@scratch > /opt/before
    # The mount went first.
    grep -nE '^(Unmounted scratch.mount|Stopping stria-oss)' /opt/before | head -1 | grep Unmounted
    echo > /between/rebooted
    cat /between/over1
    exit
fi
touch /opt/rebooted
mkdir -p /var/log/journal
journalctl --flush
dpkg --force-depends -i /opt/stria.deb
cd /var/lib/stria
tar -xp < /between/files1
chmod 700 scratch
chown -R stria:stria scratch
echo 'STRIA_OSTS=0-1
STRIA_OSS_OPTIONS=--listen 192.0.2.2:7989 --mds 192.0.2.1:7988 --set metrics.listen=127.0.0.1:9100' > /etc/stria/scratch.conf
systemctl enable --now stria-oss@scratch || { journalctl --no-pager -n 40 -u stria-oss@scratch; exit 1; }
cat /between/key1 > /etc/stria/scratch.key
chmod 600 /etc/stria/scratch.key
mkdir /scratch
echo '192.0.2.1:7988 /scratch stria _netdev,key=/etc/stria/scratch.key,noatime 0 0' > /etc/fstab
systemctl daemon-reload
systemctl start scratch.mount
cat /between/written1
md5sum -c /scratch/sum
# Written and not synced when the machine goes down: the mount writes that out before the servers of this machine stop.
stria setstripe -c -1 /scratch/of-oss1
dd if=/dev/urandom of=/scratch/of-oss1 bs=1M count=32
md5sum /scratch/of-oss1 > /scratch/of-oss1.sum
touch /run/reboots
systemctl --no-block reboot
exit 1
