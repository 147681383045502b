#!/usr/bin/env bash
# test_resume_slow.sh - slow: test_resume.sh with 20 kills, and with three ranks.
bash tests/train/test_resume.sh "$1" 20 && exec bash tests/train/test_resume.sh "$1" 20 3
