// State and helpers for the tests, installed before the scripts of the page. The wrapper of fetch
// counts the requests of the page, so that a test waits for answers, not for a time. asked: the
// number of requests; open: those without an answer. Polls of the page's clock are counted
// separately, in looks. Live figures are ignored, because they arrive whenever they are measured.
window.questions = { asked: 0, open: new Set(), looks: { asked: 0, answered: 0 } };
{
  const plain = window.fetch.bind(window),
    waiting = new Map(),  // event id -> request
    early = new Set();  // ids of events that ended before the page knew them

  function begin(index) {
    const { dependencies, components } = window.gradio_config,
      asked = dependencies.find((listener) => listener.id === index);
    if (window.tests.isClock(index)) {
      window.questions.looks.asked++;
      return { end: () => window.questions.looks.answered++ };
    }
    if (window.tests.isWake(index)) return { end: () => {} };
    const figures = components.find((component) => component.props.elem_id === 'pending-cells')?.id;
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

  // A request that bypasses the queue is answered by its response.
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
  // Return whether a listener belongs to the clock, or follows such a listener.
  isClock(index) {
    const listener = window.gradio_config.dependencies.find((candidate) => candidate.id === index);
    if (!listener) return false;
    if (listener.targets.some(([, event]) => event === 'tick')) return true;
    return listener.trigger_after != null && this.isClock(listener.trigger_after);
  },

  // Return whether a listener only reopens the stream of answers.
  isWake(index) {
    const listener = window.gradio_config.dependencies.find((candidate) => candidate.id === index);
    return listener?.targets.some(([, event]) => event === 'wake') ?? false;
  },

  // Return whether all requests are answered and no new one follows for ten turns: an answer is
  // drawn, and its follow-up requests are sent, within a few turns; the page waits up to 80 ms
  // before it sends an edit.
  async answered() {
    const { questions } = window,
      before = questions.asked;
    for (let turn = 0; turn < 10; turn++) {
      if (questions.open.size) return false;
      await new Promise((done) => setTimeout(() => requestAnimationFrame(done), 20));
    }
    return !questions.open.size && questions.asked === before;
  },

  // Resolve when transitions have ended; endless animations are ignored.
  still() {
    const ending = document
      .getAnimations()
      .filter((animation) => animation.effect.getComputedTiming().endTime !== Infinity);
    return Promise.all(ending.map((animation) => animation.finished.catch(() => null)));
  },

  // Return the ids of all components for text, drawn or not.
  textFields() {
    const isText = ({ value, choices }) => typeof value === 'string' && !choices.length;
    return window.gradio_config.components.flatMap(({ id, type, props }) => {
      if (props.interactive === false || props.visible === false) return [];
      if (Array.isArray(props.value) && props.value[0]?.elem_id)  // see assets/fields.js
        return props.value.filter(isText).map((field) => field.elem_id);
      if (type !== 'textbox' && !(type === 'dropdown' && props.allow_custom_value)) return [];
      return [props.elem_id || `without a name: ${id}`];  // reported by the test
    });
  },

  // Write a text into a visible field, as a user does; return whether the field is visible.
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

  // Gradio writes its value into a component in the frame after it appears, over any earlier input.
  async frames() {
    for (let left = 6; left; left--) await new Promise(requestAnimationFrame);
  },

  setRange(input, value) {
    const property = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value');
    property.set.call(input, value);
    input.dispatchEvent(new Event('input', { bubbles: true }));
  },

  // Return the drawn traces and layout of a plot, or empty values if it does not exist.
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
