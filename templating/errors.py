"""What can go wrong when a chat template is rendered.

TemplatingError
├── TemplateRefusedError       the template raised an error for these messages
│   └── TemplateBrokenError    it does so for all messages: it does not compile
├── TemplateLimitError         rendering exceeded the limit on time, memory or output
└── RenderProcessError         the process that renders is gone, for whatever other cause
"""


class TemplatingError(Exception):
    """Base of the tree; the message is for people."""


class TemplateRefusedError(TemplatingError):
    """The template raised an error for these messages."""


class TemplateBrokenError(TemplateRefusedError):
    """The template does not compile, or does what the sandbox forbids."""


class TemplateLimitError(TemplatingError):
    """Rendering exceeded the limit on time, memory or output, and was stopped."""


class RenderProcessError(TemplatingError):
    """The process that renders cannot be started, or ended for an unknown cause."""
