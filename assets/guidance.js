// The list of shortcuts ("?"), the command palette (Ctrl-K), and at the first visit three examples
// and a tour. $GUIDANCE are the texts, see workbench/words/guidance.py.
{
  const text = $GUIDANCE,
    VISITED = 'lrw-visited'; // in the storage of the browser: no welcome any more
  const container = () => document.querySelector('.gradio-container');
  const filled = (template, ...values) => values.reduce((t, v) => t.replace('{}', v), template);

  function make(tag, properties = {}, ...children) {
    const node = Object.assign(document.createElement(tag), properties);
    node.append(...children);
    return node;
  }
  const press = (label, onclick, className = '') =>
    make('button', { type: 'button', className, onclick }, label);

  /* A window that Escape closes, and that is removed when it is closed. */
  function openWindow(id, title, ...children) {
    document.getElementById(id)?.close();
    const dialog = make('dialog', { id, className: 'guidance', ariaLabel: title }, ...children);
    dialog.addEventListener('close', () => dialog.remove());
    dialog.addEventListener('click', ({ target }) => target === dialog && dialog.close());
    container().append(dialog);
    dialog.showModal();
    return dialog;
  }

  function showShortcuts() {
    const rows = text.shortcuts.flatMap(([keys, effect]) => [
      make('dt', {}, make('kbd', {}, keys)),
      make('dd', {}, effect),
    ]);
    const close = press(text.close, () => dialog.close());
    const dialog = openWindow(
      'shortcuts',
      text.help,
      make('h3', {}, text.help),
      make('dl', {}, ...rows),
      close,
    );
  }

  /* The command palette */
  const tabButtons = () => [
    ...document.querySelectorAll('#tabs [role=tab], .overflow-dropdown button'),
  ];
  function openTab(title) {
    const buttons = tabButtons().filter((button) => button.textContent.trim() === title);
    (buttons.find((button) => button.offsetParent) || buttons.at(-1))?.click();
  }
  // Calls `use` with an element once it is on the page: a tab that opens is built first.
  function whenShown(selector, use, left = 50) {
    const node = document.querySelector(selector);
    if (node) use(node);
    else if (left) setTimeout(() => whenShown(selector, use, left - 1), 100);
  }
  function useModel(name) {
    const url = new URL(window.location); // it has the plan
    url.searchParams.set('model', name);
    window.location = url;
  }
  function runAction(id, tab) {
    if (tab) openTab(tab);
    whenShown('#' + id, (node) => node.click());
  }
  function commands() {
    const titles = new Set(tabButtons().map((button) => button.textContent.trim()));
    return [
      ...[...titles].map((title) => [filled(text.openTab, title), () => openTab(title)]),
      ...text.actions.map(([id, tab, label]) => [label, () => runAction(id, tab)]),
      ...text.models.map((name) => [filled(text.useModel, name), () => useModel(name)]),
      [text.takeTour, () => showStep(0)],
      [text.help, showShortcuts],
    ];
  }
  function showPalette() {
    const all = commands(),
      list = make('ul', { id: 'commands', role: 'listbox', ariaLabel: text.palette });
    const box = make('input', { type: 'text', role: 'combobox', placeholder: text.search });
    box.ariaLabel = text.search;
    box.setAttribute('aria-controls', list.id);
    box.setAttribute('aria-expanded', 'true');
    box.setAttribute('aria-autocomplete', 'list');
    let matches = [],
      chosen = 0;
    const run = (index) => {
      const command = matches[index];
      if (!command) return;
      dialog.close();
      command[1]();
    };
    function draw() {
      const words = box.value.toLowerCase().split(/\s+/);
      matches = all.filter(([label]) => words.every((w) => label.toLowerCase().includes(w)));
      chosen = Math.min(Math.max(chosen, 0), Math.max(0, matches.length - 1));
      const entries = matches.map(([label], index) => {
        const entry = make('li', { id: 'command-' + index, role: 'option' }, label);
        entry.ariaSelected = String(index === chosen);
        entry.addEventListener('click', () => run(index));
        return entry;
      });
      list.replaceChildren(...entries);
      empty.hidden = matches.length > 0;
      box.setAttribute('aria-activedescendant', matches.length ? 'command-' + chosen : '');
      list.children[chosen]?.scrollIntoView({ block: 'nearest' });
    }
    box.addEventListener('input', () => {
      chosen = 0;
      draw();
    });
    box.addEventListener('keydown', (event) => {
      const way = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (!way && event.key !== 'Enter') return;
      event.preventDefault();
      if (!way) return run(chosen);
      chosen += way;
      draw();
    });
    const empty = make('p', { role: 'status', hidden: true }, text.nothing);
    const dialog = openWindow('palette', text.palette, box, list, empty);
    draw();
    box.focus();
  }

  /* The first visit */
  function store() {
    document.getElementById('welcome')?.remove();
    try {
      localStorage.setItem(VISITED, '1');
    } catch {
      /* a browser without storage */
    }
  }
  function isFirstVisit() {
    try {
      return !localStorage.getItem(VISITED);
    } catch {
      return false;
    }
  }
  function showWelcome() {
    const cards = text.examples.map(([title, sentence, href]) =>
      make('a', { href, onclick: store }, make('b', {}, title), make('span', {}, sentence)),
    );
    const buttons = make(
      'div',
      { className: 'buttons' },
      press(text.takeTour, () => showStep(0)),
      press(text.close, store),
    );
    const aside = { id: 'welcome', className: 'guidance' };
    const welcome = make('aside', aside, make('p', {}, text.welcome), buttons, ...cards);
    // Above the plots, not on them. Gradio builds the tabs after the footer.
    whenShown('#tabs', (tabs) => tabs.parentElement.prepend(welcome));
  }
  function endTour() {
    document.getElementById('tour')?.remove();
    document.querySelector('.tour-target')?.classList.remove('tour-target');
  }
  function showStep(index) {
    store();
    endTour();
    if (index === text.tour.length) return;
    const [selector, tab, sentence] = text.tour[index],
      isLast = index === text.tour.length - 1;
    const isNarrow = window.innerWidth <= 768, // the sidebar covers the tabs
      sidebar = tab ? isNarrow && '.sidebar.open' : '.sidebar:not(.open)';
    if (sidebar) document.querySelector(sidebar + ' .toggle-button')?.click();
    if (tab) openTab(tab);
    whenShown(selector, (node) => {
      node.classList.add('tour-target');
      node.scrollIntoView({ block: 'center' });
    });
    const next = press(isLast ? text.done : text.next, () => showStep(index + 1), 'primary');
    const buttons = make('div', { className: 'buttons' }, next);
    if (!isLast) buttons.append(press(text.skip, endTour));
    const step = make('b', {}, filled(text.step, index + 1, text.tour.length));
    const tour = make('section', { id: 'tour', className: 'guidance', role: 'dialog' }, step);
    tour.ariaLabel = step.textContent;
    tour.append(make('p', {}, sentence), buttons);
    tour.addEventListener('keydown', ({ key }) => key === 'Escape' && endTour());
    container().append(tour);
    next.focus();
  }

  const WITHOUT_TEXT = ['range', 'checkbox', 'radio', 'button', 'file'].map(
    (type) => `[type=${type}]`,
  );
  const TYPED = `input:not(${WITHOUT_TEXT}), textarea, select, [contenteditable]`;
  const isTyping = ({ target }) => target.closest?.(TYPED);
  // The buttons may be in a fold that is closed.
  function step(id) {
    if (document.querySelector('#cockpit')?.checkVisibility()) document.getElementById(id)?.click();
  }
  document.addEventListener('keydown', (event) => {
    const withControl = event.ctrlKey || event.metaKey,
      key = event.key.toLowerCase();
    if (withControl && key === 'k') {
      event.preventDefault();
      showPalette();
    } else if (isTyping(event)) return;
    else if (withControl && key === 'z') {
      event.preventDefault();
      step(event.shiftKey ? 'redo' : 'undo');
    } else if (event.key === '?') showShortcuts();
  });
  whenShown(
    'footer',
    (footer) => {
      footer.append(press(text.shortcutsButton, showShortcuts, 'shortcuts-button'));
      if (isFirstVisit()) showWelcome();
    },
    600,
  );
}
