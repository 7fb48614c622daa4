// Runs before the page's own scripts: what the tests ask of the page.
//
// It notes what the page asks the server, so that a test waits for the answers instead of for a
// time. asked: how many questions there were; open: those that are not answered yet. The
// clock of the page asks again and again and is counted apart, in looks. A live figure comes
// whenever it has been measured: nothing waits for it here.
window.questions = { asked: 0, open: new Set(), looks: { asked: 0, answered: 0 } };
{
  const plain = window.fetch.bind(window),
    waiting = new Map(), // event id -> question
    early = new Set(); // ids of events that ended before the page knew their id

  function begin(index) {
    const { dependencies, components } = window.gradio_config,
      asked = dependencies.find((one) => one.id === index);
    if (window.tests.isClock(index)) {
      window.questions.looks.asked++;
      return { end: () => window.questions.looks.answered++ };
    }
    if (window.tests.isWake(index)) return { end: () => {} };
    const figures = components.find((one) => one.props.elem_id === 'pending-cells')?.id;
    if (asked?.outputs.includes(figures)) return { end: () => {} };
    const question = { end: () => window.questions.open.delete(question) };
    window.questions.asked++;
    window.questions.open.add(question);
    return question;
  }

  async function join(url, settings) {
    const question = begin(JSON.parse(settings.body).fn_index);
    try {
      const response = await plain(url, settings),
        id = (await response.clone().json()).event_id;
      if (!id || early.delete(id)) question.end();
      else waiting.set(id, question);
      return response;
    } catch (error) {
      question.end();
      throw error;
    }
  }

  // A question past the queue is answered by its response.
  async function run(url, settings) {
    const question = begin(JSON.parse(settings.body).fn_index);
    try {
      const response = await plain(url, settings);
      await response.clone().text();
      return response;
    } finally {
      question.end();
    }
  }

  function note(line) {
    if (!line.startsWith('data:')) return;
    const { msg, event_id: id } = JSON.parse(line.slice(5));
    if (msg !== 'process_completed') return;
    if (waiting.has(id)) waiting.get(id).end();
    else early.add(id);
    waiting.delete(id);
  }

  async function read(stream) {
    const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
    let rest = '';
    try {
      for (let part = await reader.read(); !part.done; part = await reader.read()) {
        const lines = (rest + part.value).split('\n');
        rest = lines.pop();
        lines.forEach(note);
      }
    } catch {
      // the page closed the stream
    }
  }

  window.fetch = async (request, settings) => {
    const { pathname } = new URL(request.url ?? request, location);
    if (pathname.endsWith('/queue/join')) return join(request, settings);
    if (pathname.endsWith('/run/predict')) return run(request, settings);
    const response = await plain(request, settings);
    if (pathname.endsWith('/queue/data')) read(response.clone().body);
    return response;
  };
}

window.tests = {
  // Whether a listener is the clock's, or follows it.
  isClock(index) {
    const one = window.gradio_config.dependencies.find((other) => other.id === index);
    if (!one) return false;
    if (one.targets.some(([, event]) => event === 'tick')) return true;
    return one.trigger_after != null && this.isClock(one.trigger_after);
  },

  // Whether a listener only has the stream of answers opened anew.
  isWake(index) {
    const one = window.gradio_config.dependencies.find((other) => other.id === index);
    return one?.targets.some(([, event]) => event === 'wake') ?? false;
  },

  // Whether every question is answered, and none comes for some turns of the page: an answer that
  // has arrived is drawn, and what follows from it is asked, within a few; the page itself waits up
  // to 80 ms before it sends an edit.
  async answered() {
    const { questions } = window,
      before = questions.asked;
    for (let turn = 0; turn < 10; turn++) {
      if (questions.open.size) return false;
      await new Promise((done) => setTimeout(() => requestAnimationFrame(done), 20));
    }
    return !questions.open.size && questions.asked === before;
  },

  // Resolves once what fades or slides in is there; what turns for ever does not count.
  still() {
    const ending = document
      .getAnimations()
      .filter((one) => one.effect.getComputedTiming().endTime !== Infinity);
    return Promise.all(ending.map((one) => one.finished.catch(() => null)));
  },

  // The ids of all components that take a text, whether or not they are drawn yet.
  textFields() {
    return window.gradio_config.components
      .filter(
        ({ type, props }) =>
          props.interactive !== false &&
          props.visible !== false &&
          (type === 'textbox' || (type === 'dropdown' && props.allow_custom_value)),
      )
      .map(({ id, props }) => props.elem_id || `without a name: ${id}`); // cannot be found
  },

  // Write a text into a field as a person does, if it is on show. Whether it is.
  feed(id, text) {
    const field = document.querySelector(`[id="${id}"] textarea, [id="${id}"] input`);
    if (!field || !field.checkVisibility()) return false;
    if (field.disabled) return true;
    const kind = field instanceof HTMLTextAreaElement ? HTMLTextAreaElement : HTMLInputElement;
    field.focus();
    Object.getOwnPropertyDescriptor(kind.prototype, 'value').set.call(field, text);
    field.dispatchEvent(new Event('input', { bubbles: true }));
    for (const type of ['keydown', 'keyup'])
      field.dispatchEvent(new KeyboardEvent(type, { key: 'Enter', bubbles: true }));
    field.dispatchEvent(new Event('change', { bubbles: true }));
    field.blur();
    return true;
  },

  // Gradio writes its own value into a component in the frame after it appeared, over whatever was
  // put there.
  async frames() {
    for (let left = 6; left; left--) await new Promise(requestAnimationFrame);
  },

  setRange(input, value) {
    const own = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value');
    own.set.call(input, value);
    input.dispatchEvent(new Event('input', { bubbles: true }));
  },

  // What is drawn; nothing while there is no such plot.
  plot(id) {
    const host = document.querySelector(`#${id} .js-plotly-plot[data-drawn]`),
      layout = host?._fullLayout;
    if (!layout) return { drawn: 0, x: null, ytype: '', traces: [] };
    return {
      drawn: +host.dataset.drawn,
      x: layout.xaxis.range,
      ytype: layout.yaxis.type,
      paper: layout.paper_bgcolor,
      background: layout.plot_bgcolor,
      font: layout.font.color,
      traces: host.data.map((trace) => ({
        name: trace.name,
        custom: trace.customdata,
        y: trace.y,
        hover: trace.hovertemplate || '',
      })),
    };
  },

  openTab() {
    const tab = document.querySelector('#tabs [role=tab][aria-selected=true]');
    return tab ? tab.innerText.trim() : '';
  },

  status() {
    const bar = document.querySelector('#status-bar .status-bar'),
      steps = document.querySelector('#status-bar .steps');
    return {
      job: bar && bar.dataset.jobId,
      state: bar ? bar.className.replace('status-bar', '').trim() : '',
      text: bar ? bar.innerText : '',
      stage: steps && steps.dataset.stage,
      done: steps ? +steps.dataset.done : 0,
      total: steps ? +steps.dataset.total : 0,
    };
  },

  busy() {
    return !!document.querySelector('.status-bar.running, .status-bar.queued, .job.running, .job.queued');
  },
};
