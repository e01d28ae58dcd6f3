"""What is wrong with the settings."""


class SettingsError(Exception):
    """The settings cannot be used as they are. The message says where and why, for a person."""
