"""The hub: sessions, transcript, permissions, workspace, profile."""
