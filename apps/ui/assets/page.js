// What all pages share. Gradio inserts it into <head> after it has loaded.
