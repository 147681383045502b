#!/usr/bin/env bash
# test_train_layouts_slow.sh - slow: test_train_layouts.sh with all 90 pairs.
exec bash tests/train/test_train_layouts.sh "$1" all
