"""Recorded Reflexion runs on HotPotQA."""
