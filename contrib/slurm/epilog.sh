#!/bin/sh
# slurmd's Epilog: releases what a job holds, however it ended. In slurm.conf: Epilog=/etc/slurm/epilog.d/*
exec "${STRIA_SLURM:-/usr/local/sbin/stria-slurm}" epilog
