#!/bin/sh
# slurmd's Prolog: advises what the #STRIA lines of a job ask for. In slurm.conf: Prolog=/etc/slurm/prolog.d/*  PrologFlags=Alloc
exec "${STRIA_SLURM:-/usr/local/sbin/stria-slurm}" prolog
