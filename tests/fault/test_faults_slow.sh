#!/usr/bin/env bash
# test_faults_slow.sh - slow: test_faults.sh with 504 allocations and 8 of each call.
exec bash tests/fault/test_faults.sh "$1" 63 8
