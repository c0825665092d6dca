# docs/install.md on `oss2`.
export DEBIAN_FRONTEND=noninteractive
dpkg --force-depends -i /opt/stria.deb
cd /var/lib/stria
tar -xp < /between/files2
chmod 700 scratch
chown -R stria:stria scratch
echo 'STRIA_OSTS=2-3
STRIA_OSS_OPTIONS=--listen 192.0.2.3:7989 --mds 192.0.2.1:7988 --set metrics.listen=127.0.0.1:9100' > /etc/stria/scratch.conf
systemctl enable --now stria-oss@scratch || { journalctl --no-pager -n 40 -u stria-oss@scratch; exit 1; }
cat /between/key2 > /etc/stria/scratch.key
chmod 600 /etc/stria/scratch.key
mkdir /scratch
mount -t stria -o key=/etc/stria/scratch.key 192.0.2.1:7988 /scratch
cat /between/written2
md5sum -c /scratch/sum
umount /scratch
cat /between/over2
