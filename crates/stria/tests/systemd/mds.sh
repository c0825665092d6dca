# docs/install.md on `mds`. What the guide copies by ssh goes through pipes in /between.
export DEBIAN_FRONTEND=noninteractive
dpkg --force-depends -i /opt/stria.deb
setpriv --reuid stria --regid stria --clear-groups stria mkfs --dir /var/lib/stria/scratch --osts 4 --set cluster.fsname=scratch
cd /var/lib/stria
tar -c scratch/cluster.toml scratch/keys scratch/ost0 scratch/ost1 > /between/files1
tar -c scratch/cluster.toml scratch/keys scratch/ost2 scratch/ost3 > /between/files2
rm -r scratch/ost0 scratch/ost1 scratch/ost2 scratch/ost3
echo 'STRIA_MDS_OPTIONS=--listen 192.0.2.1:7988 --set metrics.listen=127.0.0.1:9100' > /etc/stria/scratch.conf
systemctl enable --now stria-mds@scratch || { journalctl --no-pager -n 40 -u stria-mds@scratch; exit 1; }
cat scratch/keys/client.key > /between/key1
cat scratch/keys/client.key > /between/key2
install -m 600 scratch/keys/client.key /etc/stria/scratch.key
mkdir /scratch
mount -t stria -o key=/etc/stria/scratch.key 192.0.2.1:7988 /scratch
# A file gets what serves when it is made: the other machines may have come later than this mount.
until [ "$(stria df /scratch | grep -c OST)" = 4 ]; do sleep 0.1; done
stria check all
stria setstripe -c -1 /scratch/wide
dd if=/dev/urandom of=/scratch/wide bs=1M count=16
md5sum /scratch/wide > /scratch/sum
echo > /between/written1
echo > /between/written2
# Not synced: oss1, which reboots now, and this client keep what was answered.
dd if=/dev/urandom of=/scratch/more bs=1M count=16
md5sum /scratch/more > /scratch/sum-of-more
sync -f /scratch/more
cat /between/rebooted
md5sum -c /scratch/sum /scratch/sum-of-more /scratch/of-oss1.sum
test "$(stria getstripe -c /scratch/wide)" = 4
umount /scratch
echo > /between/over1
echo > /between/over2
